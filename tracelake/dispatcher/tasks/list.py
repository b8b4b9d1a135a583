"""A page of an organisation's tasks, the newest first; and those that have failed for good within a day."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.store.queries import queries
from tracelake.wire.user.tasks import FailedTasks, TaskList, TaskRow, TasksQuery

NEWEST = 20


async def list_tasks(pool: asyncpg.Pool, org_id: UUID, asked: TasksQuery) -> TaskList:
    # One more than the limit shows whether there is a next page.
    rows = await pool.fetch(
        queries("user_tasks")["list_tasks"],
        org_id,
        asked.status,
        asked.dag,
        asked.job,
        asked.before,
        *_between(asked.prefix),
        asked.limit + 1,
    )
    tasks = [TaskRow(**dict(row)) for row in rows[: asked.limit]]
    return TaskList(tasks=tasks, next=tasks[-1].id if len(rows) > asked.limit else None)


async def failed_tasks(pool: asyncpg.Pool, org_id: UUID) -> FailedTasks:
    """How many have failed, and the newest of them."""
    rows = await pool.fetch(queries("user_tasks")["failed_tasks"], org_id, NEWEST)
    tasks = [{**row} for row in rows]
    counts = {task.pop("failed") for task in tasks}
    return FailedTasks(failed=max(counts, default=0), newest=[TaskRow(**task) for task in tasks])


def _between(prefix: str | None) -> tuple[UUID | None, UUID | None]:
    """The first and the last id that begins so: a range, which the primary key finds."""
    if prefix is None:
        return None, None
    digits = prefix.replace("-", "")
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
