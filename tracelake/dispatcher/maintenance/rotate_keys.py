"""Rotates the signing keys of capability tokens: once before the listeners open, then periodically."""

from __future__ import annotations

import asyncio

import structlog

from tracelake.dispatcher.control import Control
from tracelake.errors import TraceError
from tracelake.store.db import OUTAGES
from tracelake.store.signing_keys import maintain_keys

log = structlog.get_logger()

BEAT_SECONDS = 15.0


async def rotate_forever(control: Control) -> asyncio.Task[None]:
    """Returns when the signer can sign; the task keeps rotating."""
    await _once(control)
    return asyncio.create_task(_repeat(control))


async def _repeat(control: Control) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        try:
            await _once(control)
        except (*OUTAGES, TraceError) as wrong:
            log.warning("signing keys were not maintained", because=str(wrong))


async def _once(control: Control) -> None:
    await control.clock.synchronize(control.pool)
    await maintain_keys(control.pool, control.signer, control.tokens)
