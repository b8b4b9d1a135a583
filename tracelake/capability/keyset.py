"""The published keys, as a verifier knows them: fetched when a token names an unknown key, and periodically.

Anyone can send tokens with made-up key ids, so fetches are limited: one at a time for all callers, and never two within
`floor`. That is still soon enough for every valid token. A new key is published a whole overlap before it signs, which
is longer than the floor: a verifier that fetched too early to see it may fetch again before a token needs it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import structlog

from tracelake.errors import ServiceUnavailable

FETCH_SECONDS: Final = 5.0
"""How long a fetch may take before it counts as failed."""
OLD_SECONDS: Final = 300.0
"""After this the set is fetched again even if no unknown key was named, so that a revoked key is dropped."""

FetchJwks = Callable[[], Awaitable[Mapping[str, Any]]]
K = TypeVar("K")

log = structlog.get_logger(__name__)


class VerifierKeys(Generic[K]):
    """Belongs to one event loop."""

    def __init__(
        self,
        fetch: FetchJwks,
        read: Callable[[Mapping[str, Any]], dict[str | None, K]],
        *,
        issuer: str,
        floor: float,
        monotonic: Callable[[], float] = time.monotonic,
        on_removed: Callable[[], None] = lambda: None,
    ) -> None:
        """`read` returns the usable keys of the document by their ids, or raises ValueError if there is none.

        `on_removed` is called when a key is no longer published: its signatures must not be accepted any more.
        """
        self._fetch = fetch
        self._read = read
        self._issuer = issuer
        self._floor = floor
        self._monotonic = monotonic
        self._on_removed = on_removed
        self._keys: dict[str | None, K] = {}
        self._began = -math.inf
        self._as_of = -math.inf
        self._failed = True
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str | None) -> K | None:
        """None: there is no such key. ServiceUnavailable: that cannot be known at the moment."""
        # Twice: a fetch in progress may have begun before the key was published; one that begins now has not.
        for _ in range(2):
            fetching = None if kid in self._keys else self._under_way() or self._begin()
            if fetching is None:
                break
            await asyncio.shield(fetching)  # a caller that is canceled must not end it for the others
        key = self._keys.get(kid)
        if key is None and self._failed:
            raise ServiceUnavailable(f"the keys of {self._issuer} could not be fetched", hint="try again in a moment")
        return key

    def refresh_when_old(self) -> None:
        """No caller waits for this: the known keys stay valid meanwhile."""
        if self._keys and self._monotonic() - self._as_of >= OLD_SECONDS and self._under_way() is None:
            self._begin()

    async def close(self) -> None:
        if fetching := self._under_way():
            fetching.cancel()
            await asyncio.wait([fetching])

    def _under_way(self) -> asyncio.Task[None] | None:
        return None if self._fetching is None or self._fetching.done() else self._fetching

    def _begin(self) -> asyncio.Task[None] | None:
        now = self._monotonic()
        if now - self._began < self._floor:
            return None
        self._began = now
        self._fetching = asyncio.create_task(self._refresh())
        return self._fetching

    async def _refresh(self) -> None:
        began = self._began
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                keys = self._read(await self._fetch())
        except Exception as wrong:  # noqa: BLE001 - whatever went wrong, the known keys stay good
            self._failed = True
            log.warning("keys not fetched", issuer=self._issuer, reason=str(wrong) or type(wrong).__name__)
            return
        removed = self._keys.keys() - keys.keys()
        self._keys, self._as_of, self._failed = keys, began, False
        if removed:
            self._on_removed()
