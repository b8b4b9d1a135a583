"""The published keys, as a verifier knows them: fetched when a token names one that is not known, and now and then.

Anybody can send tokens with made-up key ids, so fetches are paced: one at a time for all who wait, and never two within
`floor`. That is still soon enough for every good token. A new key is published a whole overlap before it signs, and the
overlap is longer than the floor: whoever fetched too early to see it may fetch again by the time a token needs it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
from cryptography.hazmat.primitives.asymmetric import ec

from tracelake.capability.jws import key_of
from tracelake.errors import ServiceUnavailable

FETCH_SECONDS: Final = 5.0
"""How long a fetch may take before it counts as failed."""
OLD_SECONDS: Final = 300.0
"""After this the set is fetched again even if nothing new was asked for, so that a revoked key goes."""

FetchJwks = Callable[[], Awaitable[Mapping[str, Any]]]

log = structlog.get_logger(__name__)


class KeySet:
    """Belongs to one event loop."""

    def __init__(
        self, fetch: FetchJwks, *, floor: float, monotonic: Callable[[], float], lost: Callable[[], None]
    ) -> None:
        """`lost` is called when a key is no longer published: what it signed must not be believed any more."""
        self._fetch = fetch
        self._floor = floor
        self._monotonic = monotonic
        self._lost = lost
        self._keys: dict[str, ec.EllipticCurvePublicKey] = {}
        self._began = -math.inf
        self._as_of = -math.inf
        self._failed = True
        self._flight: asyncio.Task[None] | None = None

    async def find(self, kid: str) -> ec.EllipticCurvePublicKey | None:
        """None: there is no such key. ServiceUnavailable: that cannot be known at the moment."""
        # Two looks: a fetch under way may have begun before the key was published; one that begins now has not.
        for _ in range(2):
            flight = None if kid in self._keys else self._under_way() or self._begin()
            if flight is None:
                break
            await asyncio.shield(flight)  # who stops waiting must not stop it for the others
        key = self._keys.get(kid)
        if key is None and self._failed:
            raise ServiceUnavailable("the keys of capability tokens could not be fetched", hint="try again in a moment")
        return key

    def refresh_when_old(self) -> None:
        """Nobody waits for this: what is known stays good meanwhile."""
        if self._keys and self._monotonic() - self._as_of >= OLD_SECONDS and self._under_way() is None:
            self._begin()

    async def close(self) -> None:
        if flight := self._under_way():
            flight.cancel()
            await asyncio.wait([flight])

    def _under_way(self) -> asyncio.Task[None] | None:
        return None if self._flight is None or self._flight.done() else self._flight

    def _begin(self) -> asyncio.Task[None] | None:
        now = self._monotonic()
        if now - self._began < self._floor:
            return None
        self._began = now
        self._flight = asyncio.create_task(self._refresh())
        return self._flight

    async def _refresh(self) -> None:
        began = self._began
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                keys = _read(await self._fetch())
        except Exception as wrong:  # noqa: BLE001 - whatever went wrong, the known keys stay good
            self._failed = True
            log.warning("capability keys not fetched", reason=str(wrong) or type(wrong).__name__)
            return
        lost = self._keys.keys() - keys.keys()
        self._keys, self._as_of, self._failed = keys, began, False
        if lost:
            self._lost()


def _read(document: Mapping[str, Any]) -> dict[str, ec.EllipticCurvePublicKey]:
    """What we can use of it. None at all is no answer: a Dispatcher publishes a key before it opens its listeners."""
    found = {str(jwk["kid"]): key for jwk in document["keys"] if (key := key_of(jwk)) is not None}
    if not found:
        raise ValueError("the key set holds no ES256 key")
    return found
