"""The time as Postgres has it, without asking it each time: what tokens are timed by.

Two replicas whose own clocks are hours apart, or jump, mint and judge tokens alike. Between two looks it goes on by
the kernel's timer, which nobody sets.
"""

from __future__ import annotations

import time

import asyncpg

from tracelake.store.queries import queries


class DatabaseClock:
    """Call it for the seconds since 1970. Until the first look it is this machine's clock."""

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    async def look(self, pool: asyncpg.Pool) -> None:
        now: float = await pool.fetchval(queries("signing_keys")["now"])
        self._ahead = now - time.monotonic()
