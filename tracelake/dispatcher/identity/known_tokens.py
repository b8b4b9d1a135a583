"""The tokens of services that hold, in memory: read again when one has changed, and every few seconds.

So a call costs no round trip, and a revoked token is refused at once where the notification arrives, and after
`MOST_SECONDS` where it is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import Changed
from tracelake.domain.access.service_tokens import ANY_LISTENER
from tracelake.store.queries import Row, fetch_rows, queries
from tracelake.wire.service.gate import ServiceCaller

MOST_SECONDS: Final = 3.0
"""How old what is in memory may be."""
UNKNOWN_SECONDS: Final = 0.2
"""How old it may be for a token that it does not have, which may be new."""


class TokenHash(Row, frozen=True):
    """What a listener receives of a token."""

    id: UUID
    service: str
    runtimes: list[str] | None
    listener: str
    token_hash: bytes


class KnownTokens:
    """Belongs to one event loop."""

    def __init__(self, pool: asyncpg.Pool, changed: Changed, most_seconds: float = MOST_SECONDS) -> None:
        self._pool, self._changed, self._most = pool, changed, most_seconds
        self._callers: dict[tuple[bytes, str], tuple[UUID, ServiceCaller]] = {}
        self._gateways: Sequence[bytes] = ()
        self._used: set[UUID] = set()
        self._read_at = 0.0
        self._count = -1
        self._reading = asyncio.Lock()

    async def find(self, token_hash: bytes, listener: str) -> ServiceCaller | None:
        """The service whose token has this hash at this listener."""
        await self._refresh(self._most)
        found = self._found(token_hash, listener)
        if found is None:
            await self._refresh(UNKNOWN_SECONDS)
            found = self._found(token_hash, listener)
        if found is None:
            return None
        self._used.add(found[0])
        return found[1]

    async def gateways(self) -> Sequence[bytes]:
        """What Gateways' tokens are at the Dispatcher, as hashes: the keys of their proofs."""
        await self._refresh(self._most)
        return self._gateways

    def _found(self, token_hash: bytes, listener: str) -> tuple[UUID, ServiceCaller] | None:
        return self._callers.get((token_hash, listener)) or self._callers.get((token_hash, ANY_LISTENER))

    async def _refresh(self, most: float) -> None:
        if self._is_fresh(most):
            return
        async with self._reading:
            if not self._is_fresh(most):
                await self._read()

    def _is_fresh(self, most: float) -> bool:
        return self._count == self._changed.count and time.monotonic() - self._read_at < most

    async def _read(self) -> None:
        began, count, used = time.monotonic(), self._changed.count, list(self._used)
        rows = await fetch_rows(self._pool, queries("service_tokens")["load_tokens"], TokenHash, used)
        self._callers = {
            (row.token_hash, row.listener): (row.id, ServiceCaller(row.service, frozenset(row.runtimes or ())))
            for row in rows
        }
        self._gateways = [row.token_hash for row in rows if (row.service, row.listener) == ("gateway", "dispatcher")]
        self._used -= set(used)
        self._read_at, self._count = began, count
