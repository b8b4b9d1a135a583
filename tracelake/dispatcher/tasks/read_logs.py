"""The log lines of an attempt, in order, a page at a time."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.tasks.show import no_such_task
from tracelake.domain.task import TaskState
from tracelake.store.queries import queries
from tracelake.wire.user_tasks import LogsQuery, TaskLine, TaskLines


async def read_logs(pool: asyncpg.Pool, org_id: UUID, task_id: UUID, asked: LogsQuery) -> TaskLines:
    sql = queries("task_logs")["read_lines"]
    rows = await pool.fetch(sql, task_id, org_id, asked.attempt, asked.first, asked.limit)
    if not rows:
        raise no_such_task(task_id)
    lines = [TaskLine(n=row["n"], at=row["at"], level=row["level"], text=row["text"]) for row in rows if row["text"]]
    attempt = asked.attempt or rows[0]["current"]
    ended = rows[0]["status"] != TaskState.RUNNING or attempt != rows[0]["current"]
    return TaskLines(task_id=task_id, attempt=attempt, ended=ended, lines=lines)
