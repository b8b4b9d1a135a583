"""Deletes records of applied batches that are old and settled as committed.

A record keeps a batch that is delivered again from being applied again. A batch that the Dispatcher has settled as
committed is never applied again; one that it has not keeps its record, however old it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn
from uuid import UUID

import asyncpg

from tracelake.errors import TraceError
from tracelake.runtime.background import repeat
from tracelake.store.db import OUTAGES
from tracelake.store.queries import Row, fetch_rows, queries
from tracelake.wire.client import DispatcherClient

BATCH: Final = 500
BEAT_SECONDS: Final = 60.0
FRONT: Final = (datetime.fromtimestamp(0, UTC), UUID(int=0))


class OldRecord(Row, frozen=True):
    publish_id: UUID
    applied_at: datetime


async def keep_pruning(pool: asyncpg.Pool, dispatcher: DispatcherClient, keep: timedelta) -> NoReturn:
    outages = (*OUTAGES, asyncpg.PostgresError, TraceError)
    not_done = "records of applied batches are not deleted"
    await repeat(lambda: prune_applied(pool, dispatcher, keep), BEAT_SECONDS, outages, not_done)


async def prune_applied(pool: asyncpg.Pool, dispatcher: DispatcherClient, keep: timedelta) -> int:
    """All that are old enough, a batch at a time; how many were deleted."""
    sql, pruned, after = queries("applied_batches"), 0, FRONT
    while rows := await fetch_rows(pool, sql["old"], OldRecord, keep, *after, BATCH):
        committed = await _committed(dispatcher, [row.publish_id for row in rows])
        if committed:
            pruned += int(await pool.fetchval(sql["prune"], committed))
        after = (rows[-1].applied_at, rows[-1].publish_id)
    return pruned


async def _committed(dispatcher: DispatcherClient, publishes: Sequence[UUID]) -> list[UUID]:
    answer = await dispatcher.buffer_records(publishes)
    return [record.publish_id for record in answer.records if record.status == "Committed"]
