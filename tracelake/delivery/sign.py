"""How a receiver knows that a delivery is ours: an HMAC over the time and the body, with the channel's secret."""

from __future__ import annotations

import hashlib
import hmac


def signature(secret: str, at: int, body: bytes) -> str:
    """`t=<unix seconds>,v1=<hex>`: SHA-256 over `<t>.<body>`."""
    told = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={told}"
