"""Ends attempts whose lease has expired, and queues retries that are due. Both are timed by Postgres."""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg
import structlog

from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.tasks.completion.report_failure import FailedAttempt, report_final_failure
from tracelake.domain.task import TaskState
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import fetch_rows, queries

log = structlog.get_logger()

BATCH = 500


@dataclass(frozen=True)
class ExpireLeases:
    pool: asyncpg.Pool
    after: AfterCommit
    failure_alert: str
    """The name of the alert that a task raises which has failed for good."""
    max_workers_lost: int

    async def once(self) -> int:
        lost = await self._end_attempts()
        crash_point("expire_leases.leases_ended", when=lost)
        retried = int(await self.pool.fetchval(queries("lifecycle")["retry_due"], BATCH))
        crash_point("expire_leases.retries_queued", when=retried)
        self.after.metrics.moved(TaskState.FAILED, TaskState.QUEUED, retried)
        if retried:
            self.after.outbox.notify()
        return lost + retried

    async def next_due(self) -> float | None:
        due: float | None = await self.pool.fetchval(queries("lifecycle")["next_lifecycle"])
        return due

    async def _end_attempts(self) -> int:
        limits = BATCH, self.failure_alert, self.max_workers_lost
        lost = await fetch_rows(self.pool, queries("lifecycle")["expire_leases"], FailedAttempt, *limits)
        for failure in lost:
            retry = {"next_retry_at": str(failure.next_retry_at)} if failure.next_retry_at else {}
            log.warning("attempt given up", **failure.log_fields, **retry)
            if failure.for_good:
                report_final_failure(self.after.metrics, failure)
        self.after.metrics.moved(TaskState.RUNNING, TaskState.FAILED, len(lost))
        if lost:
            self.after.outbox.notify()  # slots are free again
            self.after.sources.notify()  # a lost run may be that of a source
            self.after.stops.notify()  # an attempt that timed out may still run
        return len(lost)
