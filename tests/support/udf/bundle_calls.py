"""A bundle on its way into a system, by the calls that anybody would make."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.support.systems.gateway import System
from tests.support.udf.zips import zipped

CODE = b"def handler(event, context): return None\n"
BUNDLE = zipped(("main.py", CODE))
WRITER = "acme|writer"


def sha256(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()


def announced(archive: bytes, name: str = "detector", kind: str = "python") -> dict[str, Any]:
    return {"name": name, "kind": kind, "sha256": sha256(archive), "size_bytes": len(archive)}


async def uploaded(trace: System, archive: bytes = BUNDLE, user: str = WRITER, **told: str) -> dict[str, Any]:
    """Announced and sent, not yet judged."""
    made: dict[str, Any] = await trace.got(user, "POST", "/v1/udf/bundles", json=announced(archive, **told))
    if made["upload"] is not None:
        await trace.got(user, "PUT", made["upload"]["path"], content=archive)
    return made


async def pushed(trace: System, archive: bytes = BUNDLE, user: str = WRITER, **told: str) -> dict[str, Any]:
    made = await uploaded(trace, archive, user, **told)
    done: dict[str, Any] = await trace.got(user, "POST", f"/v1/udf/bundles/{made['id']}/finalize")
    return done
