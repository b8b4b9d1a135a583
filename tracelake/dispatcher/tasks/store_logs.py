"""Stores the log lines of a task for users: each line once, and up to a limit for each attempt."""

from __future__ import annotations

from typing import Final

import asyncpg

from tracelake.store.queries import queries
from tracelake.store.tasks import not_current
from tracelake.wire.task.lifecycle import LogsAnswer, LogsRequest

ROOM: Final = 1_000
"""Lines of one attempt."""
LINE: Final = 2_000
"""Characters of one line."""


async def store_logs(database: asyncpg.Pool, request: LogsRequest) -> LogsAnswer:
    lines = request.lines[: max(0, ROOM - request.first)]
    kept = await database.fetchval(
        queries("task_logs")["store_lines"],
        request.task_id,
        request.attempt,
        request.lease_token,
        [request.first + n for n in range(len(lines))],
        [line.at for line in lines],
        [line.level for line in lines],
        [cut(line.text) for line in lines],
    )
    if kept is None:
        raise not_current()
    return LogsAnswer(kept=kept, full=request.first + len(request.lines) >= ROOM)


def cut(text: str) -> str:
    """A line that Postgres can hold and a person can read."""
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return text if len(text) <= LINE else f"{text[: LINE - 1]}…"
