"""Reads what the tasks of a runtime need, for whoever starts and stops its workers."""

from __future__ import annotations

from typing import Final

import asyncpg

from tracelake.store.queries import Row, fetch_row, queries
from tracelake.wire.task.lifecycle import WorkerLoadAnswer

MOST_COUNTED: Final = 100_000


class LoadRow(Row, frozen=True):
    queued: int
    leased: int
    sources: int
    next_retry_seconds: float | None
    keep_warm_seconds: float | None


async def read_worker_load(pool: asyncpg.Pool, runtime: str) -> WorkerLoadAnswer:
    row = await fetch_row(pool, queries("flow")["worker_load"], LoadRow, runtime, MOST_COUNTED)
    return WorkerLoadAnswer(
        queued=row.queued,
        leased=row.leased,
        sources=row.sources,
        next_retry_seconds=row.next_retry_seconds,
        keep_warm_seconds=row.keep_warm_seconds,
    )
