"""The signing keys of capability tokens are looked after: once before the doors open, then at a slow beat."""

from __future__ import annotations

import asyncio

import structlog

from tracelake.dispatcher.control import Control
from tracelake.errors import TraceError
from tracelake.store.db import OUTAGES
from tracelake.store.signing_keys import keep_keys

log = structlog.get_logger()

BEAT_SECONDS = 15.0


async def rotate_forever(control: Control) -> asyncio.Task[None]:
    """Returns when the signer signs; the task goes on."""
    await _once(control)
    return asyncio.create_task(_go_on(control))


async def _go_on(control: Control) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        try:
            await _once(control)
        except (*OUTAGES, TraceError) as wrong:
            log.warning("signing keys are not looked after", because=str(wrong))


async def _once(control: Control) -> None:
    await control.clock.look(control.pool)
    await keep_keys(control.pool, control.signer, control.tokens)
