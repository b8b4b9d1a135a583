"""Rotates the signing keys of capability tokens: once before the listeners open, then periodically."""

from __future__ import annotations

import asyncio

import asyncpg
import structlog

from tracelake.errors import TraceError
from tracelake.ports import Signer
from tracelake.settings import TokenSettings
from tracelake.store.clock import DatabaseClock
from tracelake.store.db import OUTAGES
from tracelake.store.signing_keys import maintain_keys

log = structlog.get_logger()

BEAT_SECONDS = 15.0


async def rotate_forever(
    pool: asyncpg.Pool, signer: Signer, tokens: TokenSettings, clock: DatabaseClock
) -> asyncio.Task[None]:
    """Returns when the signer can sign; the task keeps rotating."""

    async def once() -> None:
        await clock.synchronize(pool)
        await maintain_keys(pool, signer, tokens)

    async def repeat() -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                await once()
            except (*OUTAGES, TraceError) as wrong:
                log.warning("signing keys were not maintained", because=str(wrong))

    await once()
    return asyncio.create_task(repeat())
