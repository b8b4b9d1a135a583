"""A user cancels all tasks of a DAG, of a job or in a state, some thousand with each call."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import AfterCommit
from tracelake.domain.task import TaskState
from tracelake.errors import InvalidRequest
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Row, fetch_rows, queries
from tracelake.wire.user.tasks import CancelManyRequest, ManyTasksAnswer, ManyTasksRequest

BATCH: Final = 2_000


class CanceledTasks(Row, frozen=True):
    was: str
    count: int


async def cancel_tasks(
    pool: asyncpg.Pool, after: AfterCommit, org_id: UUID, request: CancelManyRequest
) -> ManyTasksAnswer:
    require_filter(request, request.status)
    sql, chosen = queries("lifecycle"), (org_id, request.dag, request.job, request.status)
    changed = 0
    if not request.dry_run:
        crash_point("cancel_tasks.before_commit")
        ended = await fetch_rows(pool, sql["cancel_tasks"], CanceledTasks, *chosen, request.reason, BATCH)
        crash_point("cancel_tasks.after_commit")
        changed = sum(row.count for row in ended)
        for row in ended:
            after.metrics.moved(row.was, TaskState.CANCELED, row.count)
        if changed:
            after.outbox.notify()  # their slots may be other tasks' turn
            after.stops.notify()
    return ManyTasksAnswer(changed=changed, left=await pool.fetchval(sql["count_tasks_to_cancel"], *chosen))


def require_filter(request: ManyTasksRequest, status: str | None = None) -> None:
    if request.dag is None and request.job is None and status is None:
        raise InvalidRequest(
            "this would be every task of the organisation",
            where="/dag",
            hint="name a DAG, a job or a state: --dag, --job, --status",
        )
