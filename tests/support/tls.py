"""A local CA and a certificate, for listeners that a test opens itself; and clients of listeners that trust one."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.waiting import SECONDS
from tracelake.lite.certificates import ensure_certificates
from tracelake.runtime.http_client import AsyncClient
from tracelake.settings import TlsSettings


def tls_in(folder: Path, now: datetime | None = None) -> TlsSettings:
    files = ensure_certificates(folder, now or datetime.now(UTC))
    return TlsSettings(ca=files.ca, cert=files.cert, key=files.key)


def trusting(ca: Path | str | None) -> ssl.SSLContext:
    """As a client of another make has it: not by the code that is tested."""
    assert ca is not None
    return ssl.create_default_context(cafile=ca)


def https(url: str, ca: Path | str | None, **more: Any) -> AsyncClient:
    """A client of one listener; it waits for a response as long as a test waits for anything."""
    return AsyncClient(**{"base_url": url, "verify": trusting(ca), "timeout": SECONDS, **more})


async def ready() -> None:
    """The readiness of a listener that waits for nothing."""
