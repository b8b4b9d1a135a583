"""A user asks for one more attempt of all tasks of a DAG or job that failed for good."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.tasks.cancel_many import BATCH, require_filter
from tracelake.domain.task import TaskState
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.user.tasks import ManyTasksAnswer, ManyTasksRequest


async def retry_tasks(
    pool: asyncpg.Pool, after: AfterCommit, org_id: UUID, request: ManyTasksRequest
) -> ManyTasksAnswer:
    """Of versions that are active: a task of another one would be canceled at once."""
    require_filter(request)
    sql, chosen, changed = queries("lifecycle"), (org_id, request.dag, request.job), 0
    if not request.dry_run:
        crash_point("retry_tasks.before_commit")
        changed = await pool.fetchval(sql["revive_tasks"], *chosen, BATCH)
        crash_point("retry_tasks.after_commit")
        after.metrics.moved(TaskState.FAILED, TaskState.QUEUED, changed)
        after.outbox.notify()
    return ManyTasksAnswer(changed=changed, left=await pool.fetchval(sql["count_tasks_to_retry"], *chosen))
