"""The time of Postgres, without a query each time: it times tokens.

Replicas whose own clocks differ, or jump, sign and verify tokens alike. Between two synchronizations it advances by the
monotonic clock.
"""

from __future__ import annotations

import time

import asyncpg

from tracelake.store.queries import queries


class DatabaseClock:
    """Call it for the seconds since 1970. Until the first synchronization it is this machine's clock."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._offset

    async def synchronize(self, pool: asyncpg.Pool) -> None:
        now: float = await pool.fetchval(queries("signing_keys")["now"])
        self._offset = now - time.monotonic()
