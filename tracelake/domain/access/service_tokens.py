"""Tokens of services: what a process sends to each listener, and how the Gateway proves for which user a call is.

A process never sends its token itself. It sends each listener a token derived for that listener, so that a listener
cannot use what it receives at another one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from typing import Final, Literal

TokenListener = Literal["dispatcher", "query", "delivery"]
LISTENERS: Final[tuple[TokenListener, ...]] = ("dispatcher", "query", "delivery")
ANY_LISTENER: Final = "any"
"""The token itself, for a scraper or a person, who cannot derive others from it: every listener accepts it."""

SERVICE_TOKEN: Final = "trace_svc_"  # noqa: S105 - how each begins
"""How a service's token begins, so that it is found where it should not be."""
PROOF_SECONDS: Final = 3600
"""How long a service may act for the user of a call: longer than any query may take."""


def new_service_token() -> str:
    return f"{SERVICE_TOKEN}{secrets.token_urlsafe(32)}"


def derive_token(token: str, listener: TokenListener) -> str:
    """What the process that has `token` sends to this listener."""
    mac = hmac.digest(token.encode(), f"trace listener {listener}".encode(), "sha256")
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


def hash_token(token: str) -> bytes:
    """Tokens are 256 random bits, so a plain hash is enough; without a salt, it can be looked up."""
    return hashlib.sha256(token.encode()).digest()


def token_hashes(token: str) -> Mapping[str, bytes]:
    """What is stored of a token: the hash of what each listener receives, and of the token itself."""
    derived: dict[str, bytes] = {listener: hash_token(derive_token(token, listener)) for listener in LISTENERS}
    return {ANY_LISTENER: hash_token(token), **derived}


def prove_user(token: str, subject: str, listener: TokenListener, now: float) -> str:
    """Lets the service at this listener act for a user for a while, as the Gateway that has `token` asks it to."""
    until = int(now) + PROOF_SECONDS
    key = hash_token(derive_token(token, "dispatcher"))
    return f"{until}.{_proof(key, subject, listener, until).hex()}"


def proven_until(proof: str, keys: Iterable[bytes], subject: str, service: str) -> int | None:
    """Until when a service may act for a user, if a Gateway wrote this; `keys`: the hashes of the Gateways' tokens."""
    until, _, mac = proof.partition(".")
    if not (until.isascii() and until.isdecimal() and len(until) < 12 and len(mac) == 64 and mac.isascii()):  # noqa: PLR2004
        return None
    expected = (_proof(key, subject, service, int(until)).hex() for key in keys)
    return int(until) if any(hmac.compare_digest(mac, item) for item in expected) else None


def _proof(key: bytes, subject: str, service: str, until: int) -> bytes:
    # The key is known to the Gateway and the Dispatcher alone: other listeners see only tokens derived for them.
    return hmac.digest(key, f"trace user\0{service}\0{until}\0{subject}".encode(), "sha256")
