"""Whether a capability token holds: by ES256, by a published key, for task listeners, now.

A good signature costs a tenth of a millisecond and a task shows its token many times, so what was found good is
remembered until it expires, by the token's hash, up to a bound. A token says what was granted when it was issued; that
its attempt is still the current one is the lease's to say, and every door asks it after this.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from tracelake.capability.claims import Claims, decode
from tracelake.capability.jws import MAX_TOKEN_CHARS, holds, take_apart
from tracelake.capability.keyset import FetchJwks, KeySet
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.settings import TokenSettings

SKEW_SECONDS: Final = 60
"""How far the issuer's clock may be ahead of ours. It never lengthens a token's life: `exp` is taken as it stands."""


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
        """`fetch_jwks` gives the published document: the Dispatcher's from its table, others' from its door."""
        self._settings = settings
        self._clock = clock
        self._remembered: OrderedDict[bytes, Claims] = OrderedDict()
        self._keys = KeySet(
            fetch_jwks, floor=settings.refresh_floor_seconds, monotonic=monotonic, lost=self._remembered.clear
        )

    async def verify(self, token: str | None) -> Claims:
        """The claims, if the token holds. TokenRefused if not; ServiceUnavailable if its key could not be fetched."""
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

    async def _proven(self, token: str) -> Claims:
        """The payload is not even read before the signature holds."""
        parts = take_apart(token)
        key = await self._keys.find(parts.kid)
        if key is None:
            raise TokenRefused(Reason.UNKNOWN_KEY)
        if not holds(parts, key):
            raise TokenRefused(Reason.BAD_SIGNATURE)
        return decode(parts.payload)

    def _judge(self, claims: Claims) -> None:
        now, longest = self._clock(), self._settings.max_life_seconds
        if claims.iss != self._settings.issuer:
            raise TokenRefused(Reason.WRONG_ISSUER)
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


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
