"""Deletes work items that ended longer ago than the retention period, in batches."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, NoReturn

import asyncpg
import structlog

from tracelake.store.db import OUTAGES
from tracelake.store.queries import queries

log = structlog.get_logger()

BATCH: Final = 1_000
BEAT_SECONDS: Final = 60.0


async def keep_pruning(pool: asyncpg.Pool, keep: timedelta) -> NoReturn:
    """Until canceled, over outages too."""
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
