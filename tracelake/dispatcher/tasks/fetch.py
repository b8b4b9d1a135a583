"""A task without claiming it: the same as the answer to a claim, without lease and capability."""

from __future__ import annotations

from uuid import UUID

from tracelake.dispatcher.alerts.of_tasks import alerts_of
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.tasks.claim import payload
from tracelake.errors import NotFound
from tracelake.store.queries import queries
from tracelake.wire.task_messages import FetchAnswer, TaskPayload


async def fetch_task(control: Control, task_id: UUID) -> FetchAnswer:
    row = await control.pool.fetchrow(queries("claim")["fetch_task"], task_id)
    if row is None:
        raise NotFound("no such task", where="query task_id")
    task = await payload(control, await control.jobs.get(row["job_id"]), row)
    alerts = await alerts_of(control.pool, {task_id: task}, {task_id: row["org_id"]})
    fields = {name: getattr(task, name) for name in TaskPayload.__struct_fields__}
    return FetchAnswer(status=row["status"], **{**fields, "alerts": alerts.get(task_id, task.alerts)})
