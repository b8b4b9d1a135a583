"""Measures how much organisations with a limit of `object_bytes` store. The tasks of one that is full wait.

What a commit adds counts from the next measurement on, so an organisation may exceed its limit by what was in flight
then: a committed output is never refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg

from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.dispatcher.signal import Signal
from tracelake.store.queries import Queryable, queries


async def measure_storage(database: Queryable) -> int:
    """How many organisations have become full, or are no longer."""
    return int(await database.fetchval(queries("org_limits")["measure_storage"]))


@dataclass(frozen=True)
class MeasureStorage(Periodic):
    every_seconds = 10.0

    pool: asyncpg.Pool
    outbox: Signal

    async def once(self) -> int:
        if await measure_storage(self.pool):
            self.outbox.notify()
        return 0
