"""Always-on sources are kept running: one run each, however many replicas look after them.

    Pending --start--> Running --its task ended--> Dead --after a while--> Pending
                       Running --pause, deactivation, shutdown--> Draining --its task ended--> Pending, or gone

Each step moves a source on by one. Missed heartbeats are the reaper's to find: they end the task.
`sources/stop_all.py` says when the system goes down.
"""

from __future__ import annotations

from datetime import timedelta

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.sources.leave import leave_sources
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

BATCH = 100
DRAIN_LIMIT = timedelta(minutes=5)
"""How long a source may take to stop when told to; then its task is canceled."""


class KeepSourcesRunning:
    def __init__(self, control: Control) -> None:
        self._control = control

    async def once(self) -> int:
        """In the order that lets a source take one step at a time, so that every state can be seen."""
        pool, sql = self._control.pool, queries("sources")
        started = int(await pool.fetchval(sql["start"], BATCH))
        crash_point("keep_sources.started", when=started)
        left = await self._leave()
        crash_point("keep_sources.left")
        moved = [_count(await pool.execute(sql[name])) for name in ("restart", "bury", "resume", "hold")]
        held = moved[-1]
        crash_point("keep_sources.moved")
        settled = await self._settle()
        crash_point("keep_sources.settled")
        ended = _count(await pool.execute(sql["end_drain"], DRAIN_LIMIT))
        entered = _count(await pool.execute(sql["enter_missing"]))
        if started:
            self._control.outbox_signal.notify()
        if left or held or ended:
            self._control.stops.notify()
        return started + left + sum(moved) + settled + ended + entered

    async def _leave(self) -> int:
        async with self._control.pool.acquire() as connection, connection.transaction():
            return await leave_sources(connection)

    async def _settle(self) -> int:
        sql = queries("sources")
        async with self._control.pool.acquire() as connection, connection.transaction():
            drained = [row["org_id"] for row in await connection.fetch(sql["lock_drained"])]
            return int(await connection.fetchval(sql["settle"], drained)) if drained else 0

    async def next_due(self) -> float | None:
        found: float | None = await self._control.pool.fetchval(queries("sources")["next_source"], DRAIN_LIMIT)
        return found


def _count(answer: str) -> int:
    """From `UPDATE 3`."""
    return int(answer.rpartition(" ")[2])
