"""Work items that have ended are deleted when they are older than they are kept for, some at each beat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

import asyncpg
import structlog

from tracelake.store.db import OUTAGES
from tracelake.store.queries import queries

log = structlog.get_logger()

BATCH: Final = 1_000
BEAT_SECONDS: Final = 60.0


@asynccontextmanager
async def pruning(pool: asyncpg.Pool, keep: timedelta) -> AsyncIterator[None]:
    """For as long as the block lasts, over outages too."""
    task = asyncio.create_task(_keep_pruning(pool, keep))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _keep_pruning(pool: asyncpg.Pool, keep: timedelta) -> None:
    while True:
        try:
            while await prune_items(pool, keep) == BATCH:
                pass
        except (*OUTAGES, asyncpg.PostgresError) as away:
            log.warning("old deliveries are not deleted", because=str(away) or type(away).__name__)
        await asyncio.sleep(BEAT_SECONDS)


async def prune_items(pool: asyncpg.Pool, keep: timedelta) -> int:
    """One batch; how many were deleted."""
    return int(await pool.fetchval(queries("deliveries")["prune"], keep, BATCH))
