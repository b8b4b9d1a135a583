"""Leases that ran out are given up; retries whose time has come are queued again. Postgres keeps the time."""

from __future__ import annotations

from trace_platform.crash_points import crash_point
from trace_platform.dispatcher.control import Control
from trace_platform.store.queries import queries

BATCH = 500


class Reaper:
    def __init__(self, control: Control) -> None:
        self._control = control

    async def once(self) -> int:
        sql = queries("lifecycle")
        lost = await self._control.pool.fetchval(sql["reap"], BATCH)
        crash_point("reap.leases_ended", when=lost)
        again = await self._control.pool.fetchval(sql["retry_due"], BATCH)
        crash_point("reap.retries_queued", when=again)
        if again:
            self._control.owed.ring()
        return int(lost) + int(again)

    async def next_due(self) -> float | None:
        found: float | None = await self._control.pool.fetchval(queries("lifecycle")["next_lifecycle"])
        return found
