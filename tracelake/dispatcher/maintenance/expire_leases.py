"""Ends attempts whose lease has expired, and queues retries that are due. Both are timed by Postgres."""

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
        lost = await self._end_attempts()
        crash_point("expire_leases.leases_ended", when=lost)
        retried = int(await self._control.pool.fetchval(queries("lifecycle")["retry_due"], BATCH))
        crash_point("expire_leases.retries_queued", when=retried)
        self._control.metrics.moved("Failed", "Queued", retried)
        if retried:
            self._control.outbox_signal.notify()
        return lost + retried

    async def next_due(self) -> float | None:
        due: float | None = await self._control.pool.fetchval(queries("lifecycle")["next_lifecycle"])
        return due

    async def _end_attempts(self) -> int:
        limits = BATCH, self._control.failure_alert, self._control.max_workers_lost
        lost = await self._control.pool.fetch(queries("lifecycle")["expire_leases"], *limits)
        for row in lost:
            fields = {name: value for name, value in row.items() if value is not None and name != "for_good"}
            fields |= {name: str(fields[name]) for name in ("org", "task", "next_retry_at") if name in fields}
            log.warning("attempt given up", **fields)
            if row["for_good"]:
                report_final_failure(self._control, dict(row))
        self._control.metrics.moved("Running", "Failed", len(lost))
        if lost:
            self._control.outbox_signal.notify()  # slots are free again
            self._control.sources.notify()  # a lost run may be that of a source
            self._control.stops.notify()  # an attempt that timed out may still run
        return len(lost)
