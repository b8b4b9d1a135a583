"""The skeleton of every loop: do what is due, say when to look again, wait for that or for the signal, never die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from tracelake.dispatcher.signal import Signal
from tracelake.errors import Unavailable
from tracelake.runtime.logs import speak_of
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.tracing import span
from tracelake.store.db import OUTAGES

log = structlog.get_logger()

AFTER_TROUBLE_SECONDS = 1.0
RETRY_SECONDS = 0.2


@dataclass(frozen=True)
class Loop:
    name: str
    once: Callable[[], Awaitable[int]]
    """Answers how much it did; as long as it does something, it is called again at once."""
    next_due: Callable[[], Awaitable[float | None]]
    signal: Signal
    beat_seconds: float = 5.0
    """How long it sleeps at most: what a dead replica left behind is found within this time."""
    metrics: Metrics = field(default_factory=Metrics)


async def run_loop(loop: Loop) -> None:
    seconds = loop.metrics.loop_seconds.labels(loop.name)
    failures = loop.metrics.loop_failures.labels(loop.name)
    speak_of(loop=loop.name)
    with loop.signal.attended():
        while True:
            began = time.perf_counter()
            try:
                wait = await _step(loop)
            except (*OUTAGES, Unavailable) as away:
                log.warning("loop waits", because=str(away) or type(away).__name__)
            except Exception:
                # A fault of ours must not stop the others' work: it is said, and tried again after a while.
                log.exception("loop failed")
            else:
                seconds.observe(time.perf_counter() - began)
                if wait != 0.0:
                    await loop.signal.wait(max(wait, 0.001))
                continue
            failures.inc()
            await asyncio.sleep(AFTER_TROUBLE_SECONDS)


async def _step(loop: Loop) -> float:
    """How long to wait then."""
    with span(f"loop {loop.name}"):
        if await loop.once():
            return 0.0
        due = await loop.next_due()
    return loop.beat_seconds if due is None else min(due, loop.beat_seconds)


async def stopped(task: asyncio.Task[None]) -> None:
    """Asked until it ends: cut off in a transaction, asyncpg may say that the connection failed instead of canceled."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=RETRY_SECONDS)
    with suppress(asyncio.CancelledError):
        await task
