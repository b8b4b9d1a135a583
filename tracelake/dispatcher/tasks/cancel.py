"""A user cancels a task. Its attempt, if it runs, cannot commit any more; its worker is notified at once."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.tasks.show import no_such_task
from tracelake.domain.task import TaskState
from tracelake.errors import Conflict
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.user.tasks import CancelAnswer


async def cancel_task(pool: asyncpg.Pool, after: AfterCommit, org_id: UUID, task_id: UUID, reason: str) -> CancelAnswer:
    """A task that was canceled before is not refused: the call may be a repeated one."""
    crash_point("cancel_task.before_commit")
    was = await pool.fetchval(queries("lifecycle")["cancel_task"], task_id, org_id, reason)
    crash_point("cancel_task.after_commit")
    if was:
        after.metrics.moved(was, TaskState.CANCELED)
        after.outbox.notify()  # its slot may be another's turn
        after.sources.notify()  # it may have been the run of one
        after.stops.notify()
        return CancelAnswer(task_id=task_id, changed=True)
    status = await pool.fetchval(queries("user_tasks")["task_status"], task_id, org_id)
    if status is None:
        raise no_such_task(task_id)
    if status != TaskState.CANCELED:
        raise Conflict(f"the task has ended: it is {status}", where=str(task_id))
    return CancelAnswer(task_id=task_id, changed=False)
