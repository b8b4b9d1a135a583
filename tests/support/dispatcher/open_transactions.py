"""Transactions that are stepped by hand: one is held open until another is seen to wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

WAITING = "SELECT pid FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"


async def blocked_by(pool: asyncpg.Pool, pid: int, *, unless: asyncio.Task[Any] | None = None) -> list[int]:
    """Returns when other backends wait for this one, with their ids; or when `unless` has ended instead."""
    async with asyncio.timeout(120):
        while True:
            found = [row["pid"] for row in await pool.fetch(WAITING, pid)]
            if found or (unless is not None and unless.done()):
                return found
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Held:
    """An open transaction on a connection of its own."""

    connection: asyncpg.Connection
    pool: asyncpg.Pool

    async def blocks(self) -> int:
        """Returns when another backend waits for this transaction: its process id."""
        [pid] = await blocked_by(self.pool, self.connection.get_server_pid())
        return pid


@asynccontextmanager
async def held(dsn: str, pool: asyncpg.Pool) -> AsyncIterator[Held]:
    """Committed when the block ends; rolled back if it fails."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            yield Held(connection, pool)
    finally:
        await connection.close()
