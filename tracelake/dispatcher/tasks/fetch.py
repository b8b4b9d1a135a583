"""A task without claiming it: the same as the answer to a claim, without lease and capability."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import asyncpg

from tracelake.dispatcher.alerts.of_tasks import alerts_of
from tracelake.dispatcher.tasks.claim import ClaimedTask, Payloads
from tracelake.errors import NotFound
from tracelake.store.jobs import JobCache
from tracelake.store.queries import find_row, queries
from tracelake.wire.task.lifecycle import FetchAnswer, TaskPayload


async def fetch_task(
    pool: asyncpg.Pool, jobs: JobCache, payloads: Payloads, runtimes: Collection[str], task_id: UUID
) -> FetchAnswer:
    """A task of another runtime than these does not exist for the caller."""
    row = await find_row(pool, queries("claim")["fetch_task"], ClaimedTask, task_id)
    job = await jobs.get(row.job_id) if row is not None else None
    if row is None or job is None or job.runtime not in runtimes:
        raise NotFound("no such task", where="query task_id")
    task = await payloads.payload(job, row)
    alerts = await alerts_of(pool, {task_id: task}, {task_id: row.org_id})
    fields = {name: getattr(task, name) for name in TaskPayload.__struct_fields__}
    return FetchAnswer(status=row.status, **{**fields, "alerts": alerts.get(task_id, task.alerts)})
