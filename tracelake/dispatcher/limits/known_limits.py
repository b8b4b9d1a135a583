"""The limits of queries, in memory: read again when they are older than a second, so no query waits for them alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final
from uuid import UUID

import asyncpg

from tracelake.store.queries import Row, fetch_rows, queries
from tracelake.wire.internal.queries import QueryLimits

MOST_SECONDS: Final = 1.0
"""How old what is in memory may be."""


class LimitsRow(Row, frozen=True):
    org_id: UUID | None
    queries: int | None
    queries_waiting: int | None
    query_seconds: int | None
    sessions: int | None
    storage_full: bool


class KnownLimits:
    """Belongs to one event loop."""

    def __init__(self, pool: asyncpg.Pool, most_seconds: float = MOST_SECONDS) -> None:
        self._pool, self._most = pool, most_seconds
        self._limits: Mapping[UUID | None, QueryLimits] = {}
        self._read_at = -most_seconds
        self._reading = asyncio.Lock()

    async def of(self, org_id: UUID) -> QueryLimits:
        async with self._reading:
            if time.monotonic() - self._read_at >= self._most:
                await self._read()
        return self._limits.get(org_id) or self._limits[None]

    async def _read(self) -> None:
        began = time.monotonic()
        rows = await fetch_rows(self._pool, queries("org_limits")["load_limits"], LimitsRow)
        self._limits = {
            row.org_id: QueryLimits(
                queries=row.queries,
                queries_waiting=row.queries_waiting,
                query_seconds=row.query_seconds,
                sessions=row.sessions,
                storage_full=row.storage_full,
            )
            for row in rows
        }
        self._read_at = began
