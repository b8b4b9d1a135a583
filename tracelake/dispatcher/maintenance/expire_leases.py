"""Leases that ran out are given up; retries whose time has come are queued again. Postgres keeps the time."""

from __future__ import annotations

import structlog

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.tasks.report_failure import report_final_failure
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

log = structlog.get_logger()

BATCH = 500


class ExpireLeases:
    def __init__(self, control: Control) -> None:
        self._control = control

    async def once(self) -> int:
        lost = await self._give_up()
        crash_point("expire_leases.leases_ended", when=lost)
        again = int(await self._control.pool.fetchval(queries("lifecycle")["retry_due"], BATCH))
        crash_point("expire_leases.retries_queued", when=again)
        self._control.metrics.moved("Failed", "Queued", again)
        if again:
            self._control.outbox_signal.notify()
        return lost + again

    async def next_due(self) -> float | None:
        found: float | None = await self._control.pool.fetchval(queries("lifecycle")["next_lifecycle"])
        return found

    async def _give_up(self) -> int:
        limits = BATCH, self._control.failure_alert, self._control.max_workers_lost
        lost = await self._control.pool.fetch(queries("lifecycle")["reap"], *limits)
        for row in lost:
            said = {name: value for name, value in row.items() if value is not None and name != "for_good"}
            said |= {name: str(said[name]) for name in ("org", "task", "next_retry_at") if name in said}
            log.warning("attempt given up", **said)
            if row["for_good"]:
                report_final_failure(self._control, dict(row))
        self._control.metrics.moved("Running", "Failed", len(lost))
        if lost:
            self._control.outbox_signal.notify()  # slots came back
            self._control.sources.notify()  # a lost run may be a source's
            self._control.stops.notify()  # what ran for too long may run still
        return len(lost)
