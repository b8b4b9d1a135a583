"""A local CA and a certificate, for listeners that a test opens itself."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tracelake.lite.certificates import ensure_certificates
from tracelake.settings import TlsSettings


def tls_in(folder: Path, now: datetime | None = None) -> TlsSettings:
    files = ensure_certificates(folder, now or datetime.now(UTC))
    return TlsSettings(ca=files.ca, cert=files.cert, key=files.key)


async def ready() -> None:
    """The readiness of a listener that waits for nothing."""
