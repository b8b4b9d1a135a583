"""A task with its cause, its attempts, what each read, what was committed, and which of its batches are dead."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import msgspec

from tracelake.errors import NotFound
from tracelake.store.queries import queries
from tracelake.wire.user.tasks import TaskDetail

SHOWN_BATCHES = 20


async def show_task(pool: asyncpg.Pool, org_id: UUID, task_id: UUID) -> TaskDetail:
    found = await pool.fetchval(queries("user_tasks")["show_task"], task_id, org_id, SHOWN_BATCHES)
    if found is None:
        raise no_such_task(task_id)
    return msgspec.json.decode(found, type=TaskDetail)


def no_such_task(task_id: UUID) -> NotFound:
    return NotFound(f"there is no task {task_id}", where=str(task_id), hint="`trace task list` shows those there are")
