"""Reports a task that has failed for good: counts it by job, and logs an error."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import structlog

from tracelake.runtime.metrics import Metrics
from tracelake.store.queries import Row

log = structlog.get_logger()


class FailedAttempt(Row, frozen=True):
    org: UUID
    dag: str
    job: str
    task: UUID
    attempt: int
    fault: str | None
    because: str | None
    next_retry_at: datetime | None = None
    for_good: bool = True

    @property
    def log_fields(self) -> dict[str, Any]:
        subject = {"org": str(self.org), "dag": self.dag, "job": self.job, "task": str(self.task)}
        return {**subject, "attempt": self.attempt, "fault": self.fault, "because": self.because}


def report_final_failure(metrics: Metrics, failure: FailedAttempt) -> None:
    metrics.failed_for_good.labels(str(failure.org), failure.dag, failure.job, failure.fault).inc()
    log.error("task failed for good", **failure.log_fields)
