"""Woken by NOTIFY: work items tell of themselves when they are committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import asyncpg
import structlog

from tracelake.store.db import OUTAGES

log = structlog.get_logger()

CHANNEL: Final = "alert_deliveries"
LOOK_SECONDS: Final = 15.0
"""How often the connection is asked whether it still lives: a cut cable says nothing by itself."""
PAUSE_SECONDS: Final = 1.0


@asynccontextmanager
async def listening(pool: asyncpg.Pool, wake: asyncio.Event) -> AsyncIterator[None]:
    """For as long as the block lasts, over outages too: after each, there may be what was not heard of."""
    task = asyncio.create_task(_keep_listening(pool, wake))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _keep_listening(pool: asyncpg.Pool, wake: asyncio.Event) -> None:
    while True:
        try:
            await _until_lost(pool, wake)
        except (*OUTAGES, asyncpg.PostgresError) as away:
            log.warning("deliveries are not heard of", because=str(away) or type(away).__name__)
        await asyncio.sleep(PAUSE_SECONDS)


async def _until_lost(pool: asyncpg.Pool, wake: asyncio.Event) -> None:
    lost = asyncio.Event()

    def heard(*_: object) -> None:
        wake.set()

    async with pool.acquire(timeout=10) as connection:
        connection.add_termination_listener(lambda *_: lost.set())
        await connection.add_listener(CHANNEL, heard)
        wake.set()  # what came before we listened
        try:
            while not lost.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(lost.wait(), LOOK_SECONDS)
                if not lost.is_set():
                    await connection.fetchval("SELECT 1", timeout=10)
        finally:
            if not connection.is_closed():
                await connection.remove_listener(CHANNEL, heard)
