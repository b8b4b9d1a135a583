"""Ends a Dispatcher whose connections are all held and idle, so that its supervisor starts another.

Such a Dispatcher refuses every call after `state.acquire_seconds`. Ending it is safe at any time: uncommitted work is
rolled back, and the next Dispatcher finds the rest.
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

CHECKS = 4
"""How many checks are made in the time after which an idle pool counts as stuck."""


async def watch_pools(process: Process, dsn: str, pools: Sequence[BoundedPool], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds / CHECKS)
        for pool in pools:
            try:
                is_stuck = await pool.is_stuck(dsn, seconds)
            except (*OUTAGES, asyncpg.PostgresError) as outage:
                log.warning("the pool was not checked", because=str(outage) or type(outage).__name__)
            else:
                if is_stuck:
                    process.give_up(f"pool {pool.name!r} is stuck: its connections did nothing for {seconds:g} s")
