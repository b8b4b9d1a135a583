"""A user asks for one more attempt of a failed task."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.tasks.show import no_such_task
from tracelake.domain.task import TaskState
from tracelake.errors import Conflict
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.user.tasks import RetryAnswer


async def retry_task(pool: asyncpg.Pool, after: AfterCommit, org_id: UUID, task_id: UUID) -> RetryAnswer:
    crash_point("retry_task.before_commit")
    attempt = await pool.fetchval(queries("lifecycle")["revive_task"], task_id, org_id)
    crash_point("retry_task.after_commit")
    if attempt is None:
        raise await _refusal(pool, org_id, task_id)
    after.metrics.moved(TaskState.FAILED, TaskState.QUEUED)
    after.outbox.notify()
    return RetryAnswer(task_id=task_id, attempt=attempt)


async def _refusal(pool: asyncpg.Pool, org_id: UUID, task_id: UUID) -> Exception:
    status = await pool.fetchval(queries("user_tasks")["task_status"], task_id, org_id)
    if status is None:
        return no_such_task(task_id)
    return Conflict(
        f"only a failed task can be retried; this one is {status}",
        where=str(task_id),
        hint=f"`trace why {task_id}` explains its state",
    )
