"""The jobs of tasks, so that log lines and metrics about a task carry organisation, DAG and job."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tracelake.store.jobs import StoredJob

KEPT = 50_000


class TaskNames:
    """Jobs of the tasks that were claimed at this replica, the oldest forgotten first."""

    def __init__(self) -> None:
        self._jobs: dict[UUID, StoredJob] = {}

    def remember(self, task_id: UUID, job: StoredJob) -> None:
        if len(self._jobs) >= KEPT:
            self._jobs.pop(next(iter(self._jobs)))
        self._jobs[task_id] = job

    def forget(self, task_id: UUID) -> None:
        self._jobs.pop(task_id, None)

    def of(self, task_id: UUID) -> StoredJob | None:
        return self._jobs.get(task_id)


def fields(job: StoredJob, task_id: UUID, attempt: int) -> dict[str, Any]:
    """The fields of a log line about a task."""
    return {"org": job.org_id, "dag": job.dag_name, "job": job.name, "task": task_id, "attempt": attempt}
