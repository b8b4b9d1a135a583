"""Keeps always-on sources running: one run each, however many replicas there are.

    Pending --start--> Running --its task ended--> Dead --after a backoff--> Pending
                       Running --pause, deactivation, shutdown--> Draining --its task ended--> Pending, or deleted

Each pass moves a source on by one state. Missed heartbeats are found by `maintenance/expire_leases.py`, which ends the
task. `sources/stop_all.py` drains all sources at shutdown.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.retire import retire_sources
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import fetch_column, queries

BATCH = 100
DRAIN_LIMIT = timedelta(minutes=5)
"""How long a draining source may take to stop; then its task is canceled."""
MOVES = ("restart_dead", "mark_dead", "resume_unpaused", "drain_paused")


@dataclass(frozen=True)
class KeepSourcesRunning:
    pool: asyncpg.Pool
    after: AfterCommit

    async def once(self) -> int:
        """In the order that moves a source by one state at a time, so that every state can be observed."""
        pool, sql = self.pool, queries("sources")
        started = int(await pool.fetchval(sql["start_sources"], BATCH))
        crash_point("keep_sources.started", when=started)
        retired = await self._retire()
        crash_point("keep_sources.left")
        moved = [_count(await pool.execute(sql[name])) for name in MOVES]
        paused = moved[-1]
        crash_point("keep_sources.moved")
        settled = await self._settle()
        crash_point("keep_sources.settled")
        canceled = _count(await pool.execute(sql["cancel_late_drains"], DRAIN_LIMIT))
        inserted = _count(await pool.execute(sql["insert_missing"]))
        if started:
            self.after.outbox.notify()
        if retired or paused or canceled:
            self.after.stops.notify()
        return started + retired + sum(moved) + settled + canceled + inserted

    async def _retire(self) -> int:
        async with self.pool.acquire() as connection, connection.transaction():
            return await retire_sources(connection)

    async def _settle(self) -> int:
        sql = queries("sources")
        async with self.pool.acquire() as connection, connection.transaction():
            orgs = await fetch_column(connection, sql["lock_drained"])
            return int(await connection.fetchval(sql["settle_drained"], orgs)) if orgs else 0

    async def next_due(self) -> float | None:
        due: float | None = await self.pool.fetchval(queries("sources")["next_due"], DRAIN_LIMIT)
        return due


def _count(status: str) -> int:
    """From `UPDATE 3`."""
    return int(status.rpartition(" ")[2])
