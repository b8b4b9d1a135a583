"""Bundles for tests: zips, good and hostile, the calls that upload them, and a DAG that runs one."""

from __future__ import annotations

import hashlib
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.dispatcher.job_chain import drained
from tests.support.systems.gateway import System

LATEST = (1980, 1, 1, 0, 0, 0)


def zipped(*files: tuple[str, bytes], mode: int = stat.S_IFREG | 0o644, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An honest zip of these files, or one with the given names."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", method) as archive:
        for name, body in files:
            entry = zipfile.ZipInfo(name, LATEST)
            entry.external_attr = mode << 16
            entry.compress_type = method
            archive.writestr(entry, body)
    return into.getvalue()


@dataclass
class Made:
    """An entry whose every field can lie. What is None is as it should be."""

    name: bytes
    body: bytes = b"x"
    method: int = 8
    flags: int = 0
    mode: int = stat.S_IFREG | 0o644
    size: int | None = None
    crc: int | None = None
    packed: bytes | None = None
    packed_size: int | None = None
    local_name: bytes | None = None
    local_size: int | None = None
    local_flags: int | None = None
    local_method: int | None = None
    offset: int | None = None
    extra: bytes = b""
    before: bytes = b""
    """Bytes that belong to no entry."""
    after: bytes = b""

    def stored(self) -> bytes:
        if self.packed is not None:
            return self.packed
        if self.method == 0:
            return self.body
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        return deflate.compress(self.body) + deflate.flush()


def by_hand(
    entries: Sequence[Made],
    *,
    comment: bytes = b"",
    count: int | None = None,
    gap: bytes = b"",
    shift: int = 0,
    disks: int = 0,
) -> bytes:
    body, directory = b"", b""
    for item in entries:
        packed = item.stored()
        crc = zlib.crc32(item.body) if item.crc is None else item.crc
        size = len(item.body) if item.size is None else item.size
        length = len(packed) if item.packed_size is None else item.packed_size
        name = item.name if item.local_name is None else item.local_name
        flags = item.flags if item.local_flags is None else item.local_flags
        method = item.method if item.local_method is None else item.local_method
        stated = size if item.local_size is None else item.local_size
        body += item.before
        offset = len(body) if item.offset is None else item.offset
        head = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, flags, method, 0, 33, crc, length, stated, len(name), 0)
        body += head + name + packed + item.after
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", 0x0314, 20, item.flags, item.method, 0, 33, crc, length, size,
            len(item.name), len(item.extra), 0, 0, 0, (item.mode & 0xFFFF) << 16, offset,
        )  # fmt: skip
        directory += item.name + item.extra
    number = len(entries) if count is None else count
    end = struct.pack(
        "<4s4H2LH", b"PK\x05\x06", disks, 0, number, number, len(directory), len(body) + len(gap) + shift, len(comment)
    )
    return body + gap + directory + end + comment


CODE = b"def handler(event, context): return None\n"
BUNDLE = zipped(("main.py", CODE))
WRITER = "acme|writer"


def sha256(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()


def announced(archive: bytes, name: str = "detector", kind: str = "python") -> dict[str, Any]:
    return {"name": name, "kind": kind, "sha256": sha256(archive), "size_bytes": len(archive)}


async def uploaded(trace: System, archive: bytes = BUNDLE, user: str = WRITER, **fields: str) -> dict[str, Any]:
    """Announced and sent, not yet judged."""
    made: dict[str, Any] = await trace.got(user, "POST", "/v1/udf/bundles", json=announced(archive, **fields))
    if made["upload"] is not None:
        await trace.got(user, "PUT", made["upload"]["path"], content=archive)
    return made


async def pushed(trace: System, archive: bytes = BUNDLE, user: str = WRITER, **fields: str) -> dict[str, Any]:
    made = await uploaded(trace, archive, user, **fields)
    done: dict[str, Any] = await trace.got(user, "POST", f"/v1/udf/bundles/{made['id']}/finalize")
    return done


DAG = """\
name: watch
jobs:
  - name: orders
    operator: noop
    runtime: dispatcher
    source: {{kind: manual}}
  - name: detect
    operator: udf
    runtime: {runtime}
    inputs: [{{from: {{job: orders}}, name: orders}}]
    outputs: [{{dataset: alert_events}}, told]
    udf: {{bundle: {bundle}, sha256: "{sha256}", handler: {handler}}}
    config: {{limit: 5, names: [a, b]}}
publish:
  watch_orders: {{job: orders}}
  watch_told: {{job: detect, output: told}}
  alert_events:
    storage: postgres
    write_mode: buffered
    columns:
      dedupe_key: text
      severity: {{type: text, nullable: false}}
      amount: bigint
    unique_key: [dedupe_key]
"""


def dag(
    archive: bytes = BUNDLE, *, bundle: str = "detector", handler: str = "main.handler", runtime: str = "ecs_udf"
) -> str:
    return DAG.format(bundle=bundle, sha256=sha256(archive), handler=handler, runtime=runtime)


async def deployed(trace: System, text: str) -> None:
    await trace.deploy("watch", text, WRITER)


async def triggered(trace: System, **scope: Any) -> Any:
    """The id of a task of `detect`."""
    await trace.got(WRITER, "POST", "/v1/dags/watch/jobs/orders/trigger", json=scope or {"start": 0, "end": 9})
    await drained(trace.control)
    found = await trace.control.pool.fetchval(
        "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'detect' ORDER BY t.created_at DESC"
    )
    assert found is not None
    return found
