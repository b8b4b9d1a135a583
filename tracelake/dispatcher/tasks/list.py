"""A page of an organisation's tasks, the newest first."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.store.queries import queries
from tracelake.wire.user_tasks import TaskList, TaskRow, TasksQuery


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


def _between(prefix: str | None) -> tuple[UUID | None, UUID | None]:
    """The first and the last id that begins so: a range, which the primary key finds."""
    if prefix is None:
        return None, None
    digits = prefix.replace("-", "")
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
