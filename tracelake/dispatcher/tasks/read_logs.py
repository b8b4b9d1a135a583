"""The log lines of an attempt, in order, a page at a time."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import asyncpg

from tracelake.dispatcher.tasks.show import no_such_task
from tracelake.domain.task import TaskState
from tracelake.store.queries import Row, fetch_rows, queries
from tracelake.wire.user.tasks import LogsQuery, TaskLine, TaskLines


class StoredLine(Row, frozen=True):
    current: int
    status: str
    n: int
    at: datetime
    level: str
    text: str | None


async def read_logs(pool: asyncpg.Pool, org_id: UUID, task_id: UUID, asked: LogsQuery) -> TaskLines:
    sql = queries("task_logs")["read_lines"]
    found = await fetch_rows(pool, sql, StoredLine, task_id, org_id, asked.attempt, asked.first, asked.limit)
    if not found:
        raise no_such_task(task_id)
    lines = [TaskLine(n=line.n, at=line.at, level=line.level, text=line.text) for line in found if line.text]
    attempt = asked.attempt or found[0].current
    ended = found[0].status != TaskState.RUNNING or attempt != found[0].current
    return TaskLines(task_id=task_id, attempt=attempt, ended=ended, lines=lines)
