"""The skeleton of every loop: do what is due, say when to look again, wait for that or for the bell, never die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from trace_platform.dispatcher.control import Bell
from trace_platform.errors import Unavailable
from trace_platform.store.db import OUTAGES

log = structlog.get_logger()

SLOWEST_BEAT_SECONDS = 5.0
"""How long a loop sleeps at most: what a dead replica left behind is found within this time."""
AFTER_TROUBLE_SECONDS = 1.0
ASKED_AGAIN_SECONDS = 0.2


async def run_loop(
    name: str, once: Callable[[], Awaitable[int]], next_due: Callable[[], Awaitable[float | None]], bell: Bell
) -> None:
    """`once` answers how much it did; as long as it does something, it is called again at once."""
    while True:
        try:
            done = await once()
            wait = 0.0 if done else await next_due()
        except (*OUTAGES, Unavailable) as away:
            log.warning("loop waits", loop=name, because=str(away) or type(away).__name__)
            await asyncio.sleep(AFTER_TROUBLE_SECONDS)
            continue
        except Exception:
            # A fault of ours must not stop the others' work: it is said, and tried again after a while.
            log.exception("loop failed", loop=name)
            await asyncio.sleep(AFTER_TROUBLE_SECONDS)
            continue
        if wait != 0.0:
            await bell.heard(min(max(wait if wait is not None else SLOWEST_BEAT_SECONDS, 0.001), SLOWEST_BEAT_SECONDS))


async def stopped(task: asyncio.Task[None]) -> None:
    """Asked until it ends: cut off in a transaction, asyncpg may say that the connection failed instead of canceled."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=ASKED_AGAIN_SECONDS)
    with suppress(asyncio.CancelledError):
        await task
