"""Checks the signatures of webhooks on the bytes that were received, in constant time.

A scheme says which headers hold the signature and what is signed with it. What identifies a delivery is signed too:
else a copy of it under another id would be accepted again.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final


class HookScheme(StrEnum):
    STANDARD = "standard"
    """Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`."""
    GITHUB = "github"
    """`X-Hub-Signature-256` over the body."""
    STRIPE = "stripe"
    """`Stripe-Signature` over a time and the body."""
    HMAC = "hmac"
    """`X-Signature-256` over the body, as GitHub does it, by any sender."""


SIGNS_TIME: Final = frozenset({HookScheme.STANDARD, HookScheme.STRIPE})
MOST_SIGNATURES: Final = 10
"""In one call: while a sender changes its secret it signs with both."""
MAX_ID: Final = 255


@dataclass(frozen=True, slots=True)
class Signed:
    """What a signature vouches for."""

    time: int | None
    """Seconds since 1970; None: the scheme signs no time."""
    delivery: str | None
    """The sender's id of the delivery; None: the bytes of the body identify it."""


class BadSignature(Exception):
    """Why a call is not accepted. For the log of the operator, never for the caller."""


def verify(scheme: HookScheme, headers: Mapping[str, str], body: bytes, secrets: Sequence[str]) -> Signed:
    """`headers` by their names in lower case. Raises BadSignature unless a signature matches one of the secrets."""
    return _CHECKS[scheme](headers, body, secrets)


def check_time(signed: Signed, now: float, tolerance: int | None) -> None:
    """Raises BadSignature if the signed time is too far from now, in either direction."""
    if signed.time is not None and tolerance is not None and abs(now - signed.time) > tolerance:
        raise BadSignature(f"it was signed {now - signed.time:.0f} s ago; at most {tolerance} s are allowed")


def _standard(headers: Mapping[str, str], body: bytes, secrets: Sequence[str]) -> Signed:
    delivery, time = _header(headers, "webhook-id"), _time(_header(headers, "webhook-timestamp"))
    if not 0 < len(delivery) <= MAX_ID or not delivery.isprintable():
        raise BadSignature("webhook-id is not an id")
    content = f"{delivery}.{headers['webhook-timestamp']}.".encode() + body
    given = [part[3:] for part in _header(headers, "webhook-signature").split(" ") if part.startswith("v1,")]
    _require(given, [b64encode(_mac(_decoded(secret), content)).decode() for secret in secrets])
    return Signed(time, delivery)


def _stripe(headers: Mapping[str, str], body: bytes, secrets: Sequence[str]) -> Signed:
    pairs = [part.strip().partition("=") for part in _header(headers, "stripe-signature").split(",")]
    times = [value for name, _, value in pairs if name == "t"]
    if len(times) != 1:
        raise BadSignature("stripe-signature has no time, or several")
    content = f"{times[0]}.".encode() + body
    given = [value for name, _, value in pairs if name == "v1"]
    _require(given, [_mac(secret.encode(), content).hex() for secret in secrets])
    return Signed(_time(times[0]), None)


def _of_body(name: str) -> Callable[[Mapping[str, str], bytes, Sequence[str]], Signed]:
    def check(headers: Mapping[str, str], body: bytes, secrets: Sequence[str]) -> Signed:
        given = _header(headers, name)
        if not given.startswith("sha256="):
            raise BadSignature(f"{name} does not begin with sha256=")
        _require([given.removeprefix("sha256=")], [_mac(secret.encode(), body).hex() for secret in secrets])
        return Signed(None, None)

    return check


_CHECKS: Final = {
    HookScheme.STANDARD: _standard,
    HookScheme.GITHUB: _of_body("x-hub-signature-256"),
    HookScheme.STRIPE: _stripe,
    HookScheme.HMAC: _of_body("x-signature-256"),
}
HEADERS: Final = frozenset(
    {"webhook-id", "webhook-timestamp", "webhook-signature", "stripe-signature", "x-hub-signature-256"}
    | {"x-signature-256"}
)
"""All that any scheme reads."""


def _require(given: Sequence[str], right: Iterable[str]) -> None:
    """Compares all with all, so that the time says nothing about which one was close."""
    if not 0 < len(given) <= MOST_SIGNATURES:
        raise BadSignature("there is no signature, or too many")
    matches = [hmac.compare_digest(item.encode(), wanted.encode()) for wanted in right for item in given]
    if not any(matches):
        raise BadSignature("no signature matches a secret")


def _header(headers: Mapping[str, str], name: str) -> str:
    if name not in headers:
        raise BadSignature(f"the header {name} is missing")
    return headers[name]


def _time(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):  # noqa: PLR2004 - thousands of years
        raise BadSignature("the signed time is not a number of seconds")
    return int(text)


def _decoded(secret: str) -> bytes:
    """Standard Webhooks writes a secret in base64, after `whsec_`."""
    try:
        return b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        return secret.encode()


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, sha256).digest()
