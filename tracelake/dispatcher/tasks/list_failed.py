"""Tasks of an organisation that have failed for good within a day: how many, and the newest of them."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.store.queries import queries
from tracelake.wire.user_tasks import FailedTasks, TaskRow

NEWEST = 20


async def failed_tasks(pool: asyncpg.Pool, org_id: UUID) -> FailedTasks:
    rows = await pool.fetch(queries("user_tasks")["failed_tasks"], org_id, NEWEST)
    tasks = [{**row} for row in rows]
    counts = {task.pop("failed") for task in tasks}
    return FailedTasks(failed=max(counts, default=0), newest=[TaskRow(**task) for task in tasks])
