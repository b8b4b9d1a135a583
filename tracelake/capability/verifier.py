"""Verifies a capability token: by ES256, by a published key, for task listeners, now.

A signature takes a tenth of a millisecond to verify and a task sends its token many times, so a valid token is
remembered until it expires, by the token's hash, up to a bound. A token contains what was granted when it was issued;
whether its attempt is still the current one is decided by the lease, which every API checks after this.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec

from tracelake.capability.claims import Claims, decode
from tracelake.capability.jws import MAX_TOKEN_CHARS, has_valid_signature, key_of, parse_token
from tracelake.capability.keyset import FetchJwks, VerifierKeys
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.settings import TokenSettings

SKEW_SECONDS: Final = 60
"""How far the issuer's clock may be ahead of ours. It never lengthens a token's life: `exp` is exact."""


class Verifier:
    """One per process; belongs to one event loop."""

    def __init__(
        self,
        fetch_jwks: FetchJwks,
        settings: TokenSettings,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`fetch_jwks` returns the published document: in the Dispatcher from its table, elsewhere from its API."""
        self._settings = settings
        self._clock = clock
        self._remembered: OrderedDict[bytes, Claims] = OrderedDict()
        self._epoch = 0
        self._keys = VerifierKeys(
            fetch_jwks,
            self._read,
            issuer="capability tokens",
            floor=settings.refresh_floor_seconds,
            monotonic=monotonic,
            on_removed=self._remembered.clear,
        )

    async def verify(self, token: str | None) -> Claims:
        """The claims of a valid token. TokenRefused if it is not; ServiceUnavailable if its key cannot be fetched."""
        if not token:
            raise TokenRefused(Reason.MISSING)
        if len(token) > MAX_TOKEN_CHARS:
            raise TokenRefused(Reason.TOO_LARGE)
        self._keys.refresh_when_old()
        digest = _digest(token)
        claims = self._remembered.get(digest)
        if claims is None:
            claims = await self._proven(token)
            self._judge(claims)
            self._keep(digest, claims)
            return claims
        if self._clock() >= claims.exp:
            del self._remembered[digest]
            raise TokenRefused(Reason.EXPIRED)
        self._remembered.move_to_end(digest)
        return claims

    def remember(self, token: str, claims: Claims) -> None:
        """A replica need not verify what it signed itself a moment ago."""
        self._keep(_digest(token), claims)

    async def close(self) -> None:
        await self._keys.close()

    def _read(self, document: Mapping[str, Any]) -> dict[str | None, ec.EllipticCurvePublicKey]:
        """The keys, and the epoch whose tokens are valid: it is published with them."""
        keys, epoch = _task_keys(document), int(document.get("epoch", 0))
        if epoch != self._epoch:
            self._epoch = epoch
            self._remembered.clear()
        return keys

    async def _proven(self, token: str) -> Claims:
        """The payload is not even read before the signature holds."""
        parts = parse_token(token)
        key = await self._keys.find(parts.kid)
        if key is None:
            raise TokenRefused(Reason.UNKNOWN_KEY)
        if not has_valid_signature(parts, key):
            raise TokenRefused(Reason.BAD_SIGNATURE)
        return decode(parts.payload)

    def _judge(self, claims: Claims) -> None:
        now, longest = self._clock(), self._settings.max_life_seconds
        if claims.iss != self._settings.issuer:
            raise TokenRefused(Reason.WRONG_ISSUER)
        if claims.epoch != self._epoch:
            raise TokenRefused(Reason.WRONG_EPOCH)
        if claims.iat > now + SKEW_SECONDS:
            raise TokenRefused(Reason.NOT_YET_VALID)
        if claims.exp - claims.iat > longest or claims.exp > now + longest + SKEW_SECONDS:
            raise TokenRefused(Reason.LIVES_TOO_LONG)
        if now >= claims.exp:
            raise TokenRefused(Reason.EXPIRED)

    def _keep(self, digest: bytes, claims: Claims) -> None:
        self._remembered[digest] = claims
        self._remembered.move_to_end(digest)
        while len(self._remembered) > self._settings.remembered:
            self._remembered.popitem(last=False)


def _task_keys(document: Mapping[str, Any]) -> dict[str | None, ec.EllipticCurvePublicKey]:
    """No key at all is no answer: a Dispatcher publishes one before it opens its listeners."""
    keys: dict[str | None, ec.EllipticCurvePublicKey] = {
        str(jwk["kid"]): key for jwk in document["keys"] if (key := key_of(jwk)) is not None
    }
    if not keys:
        raise ValueError("the key set has no ES256 key")
    return keys


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
