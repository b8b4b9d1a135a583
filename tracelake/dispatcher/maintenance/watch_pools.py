"""Ends a Dispatcher whose connections are all held and do nothing, so that its supervisor starts another.

Calls are refused after `state.acquire_seconds` then, which is right for a moment and wrong for ever. Ending is safe at
any time: what was not committed is rolled back, and what was is found by the next Dispatcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg
import structlog

from tracelake.runtime.process import Process
from tracelake.store.db import OUTAGES
from tracelake.store.pool import BoundedPool

log = structlog.get_logger()

LOOKS = 4
"""How often it looks in the time that a pool may stand still."""


async def watch_pools(process: Process, dsn: str, pools: Sequence[BoundedPool], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds / LOOKS)
        for pool in pools:
            try:
                is_stuck = await pool.is_stuck(dsn, seconds)
            except (*OUTAGES, asyncpg.PostgresError) as away:
                log.warning("Postgres was not asked about the pool", because=str(away) or type(away).__name__)
            else:
                if is_stuck:
                    process.give_up(f"pool {pool.name!r} is stuck: its connections did nothing for {seconds:g} s")
