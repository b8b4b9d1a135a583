"""How a token is written: compact JWS, ES256 only, one header. And the public keys, as JWK.

The header is read before anything is known to be true, so nothing in it chooses how the token is checked: the
algorithm is fixed, a key is only looked up by its name, and every field that could bring or fetch a key (`jku`, `x5u`,
`jwk`, ...) or change the rules (`crit`, `b64`) is refused by not being one of the three that are known.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.capability.strict_json import read_object
from tracelake.errors import InvalidRequest

MAX_TOKEN_CHARS: Final = 32 * 1024
"""It travels in an HTTP header; a server may refuse a request with more than 64 KiB of them."""

_OVERHEAD_CHARS: Final = 256
"""Header, signature and dots of a token: 107 + 86 + 2, with room to spare."""
_HEADER_CHARS: Final = 512
"""Ours has 107. No more of an unverified header is parsed."""
_FIELDS: Final = {"alg", "kid", "typ"}
_THUMBPRINT: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_COORDINATE_BYTES: Final = 32

_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""n of P-256."""

_ES256: Final = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True, slots=True)
class Unverified:
    """A token taken apart. Nothing in it is true yet."""

    kid: str
    signed: bytes
    payload: bytes
    signature: bytes


def header_of(kid: str) -> bytes:
    """The first part of every token that this key signs."""
    return encode_part(json.dumps({"alg": "ES256", "kid": kid, "typ": "JWT"}, separators=(",", ":")).encode())


def sign_token(header: bytes, payload: bytes, key: ec.EllipticCurvePrivateKey) -> str:
    signed = header + b"." + encode_part(payload)
    return (signed + b"." + encode_part(jws_signature(key.sign(signed, _ES256)))).decode("ascii")


def jws_signature(der: bytes) -> bytes:
    """A signature as JWS has it, r and s one after the other, from what OpenSSL and KMS give.

    Of s and n - s, which both verify, the smaller: so one token has one signature.
    """
    r, s = decode_dss_signature(der)
    s = min(s, _ORDER - s)
    return r.to_bytes(_COORDINATE_BYTES) + s.to_bytes(_COORDINATE_BYTES)


def parse_token(token: str) -> Unverified:
    """Three parts, each in its only spelling, and a header that names nothing but algorithm, type and key."""
    if len(token) > MAX_TOKEN_CHARS:
        raise TokenRefused(Reason.TOO_LARGE)
    try:
        header, payload, signature = token.encode("ascii").split(b".")
    except ValueError:  # not ASCII, or not three parts
        raise TokenRefused(Reason.MALFORMED) from None
    return Unverified(_kid(header), header + b"." + payload, _decode(payload), _decode(signature))


def has_valid_signature(token: Unverified, key: ec.EllipticCurvePublicKey) -> bool:
    if not is_canonical(token.signature):
        return False
    r, s = token.signature[:_COORDINATE_BYTES], token.signature[_COORDINATE_BYTES:]
    try:
        key.verify(encode_dss_signature(int.from_bytes(r), int.from_bytes(s)), token.signed, _ES256)
    except InvalidSignature:
        return False
    return True


def is_canonical(signature: bytes) -> bool:
    """Whether an ES256 signature is spelled as `joined` spells it. Anybody can make the other spelling from it."""
    return len(signature) == 2 * _COORDINATE_BYTES and 2 * int.from_bytes(signature[_COORDINATE_BYTES:]) <= _ORDER


def check_size(payload: bytes) -> None:
    """A token that no verifier would accept must not be issued."""
    if len(payload) * 4 // 3 + _OVERHEAD_CHARS > MAX_TOKEN_CHARS:
        raise InvalidRequest(
            f"a capability of {len(payload)} bytes does not fit a request's header",
            where="/datasets",
            hint="the task names too many datasets or prefixes; split the job",
        )


def public_jwk(key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    """The public half as it is published, under its RFC 7638 thumbprint."""
    numbers = key.public_numbers()
    x, y = (encode_part(part.to_bytes(_COORDINATE_BYTES)).decode() for part in (numbers.x, numbers.y))
    return {"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": thumbprint(x, y), "use": "sig", "alg": "ES256"}


def thumbprint(x: str, y: str) -> str:
    """RFC 7638: the same key has the same name everywhere, and a name fits one key only."""
    required = json.dumps({"crv": "P-256", "kty": "EC", "x": x, "y": y}, separators=(",", ":"))
    return encode_part(hashlib.sha256(required.encode()).digest()).decode()


def key_of(jwk: Mapping[str, Any]) -> ec.EllipticCurvePublicKey | None:
    """The key, or None if it is of another kind, not on the curve, or not the one that it is named after."""
    x, y = jwk.get("x"), jwk.get("y")
    kind = (jwk.get("kty"), jwk.get("crv"), jwk.get("use", "sig"), jwk.get("alg", "ES256"))
    if kind != ("EC", "P-256", "sig", "ES256") or not (isinstance(x, str) and isinstance(y, str)):
        return None
    if jwk.get("kid") != thumbprint(x, y):
        return None
    try:
        numbers = ec.EllipticCurvePublicNumbers(_number(x), _number(y), ec.SECP256R1())
        return numbers.public_key()
    except (ValueError, TokenRefused):
        return None


@lru_cache(maxsize=64)  # good tokens share a few headers; refusals are not cached
def _kid(part: bytes) -> str:
    if len(part) > _HEADER_CHARS:
        raise TokenRefused(Reason.BAD_HEADER)
    header = read_object(_decode(part))
    if header.get("alg") != "ES256":
        raise TokenRefused(Reason.BAD_ALGORITHM)
    if not header.keys() <= _FIELDS or header.get("typ", "JWT") != "JWT":
        raise TokenRefused(Reason.BAD_HEADER)
    kid = header.get("kid")
    if not isinstance(kid, str) or not _THUMBPRINT.fullmatch(kid):
        raise TokenRefused(Reason.BAD_KEY_ID)
    return kid


def _number(text: str) -> int:
    decoded = _decode(text.encode())
    if len(decoded) != _COORDINATE_BYTES:
        raise ValueError
    return int.from_bytes(decoded)


def encode_part(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _decode(text: bytes) -> bytes:
    """Python's decoder skips what it does not know and ignores spare bits: only one spelling survives the way back."""
    try:
        data = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except binascii.Error:
        raise TokenRefused(Reason.MALFORMED) from None
    if encode_part(data) != text:
        raise TokenRefused(Reason.MALFORMED)
    return data
