"""The skeleton of every loop: do what is due, wait until more is due or for a signal, and survive every error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import structlog

from tracelake.dispatcher.signal import Signal
from tracelake.errors import Unavailable
from tracelake.runtime.logs import set_log_fields
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.tracing import span
from tracelake.store.db import OUTAGES

log = structlog.get_logger()

AFTER_FAILURE_SECONDS = 1.0
RETRY_SECONDS = 0.2


class Work(Protocol):
    """What a loop does again and again."""

    async def once(self) -> int:
        """Returns how much it did; unless that is 0, it is called again at once."""
        ...

    async def next_due(self) -> float | None:
        """Seconds until it has work again; None: when the longest wait of its loop ends."""
        ...


class Periodic(Work):
    """Work that nothing signals: it runs every so many seconds; None: at each beat of the Dispatcher."""

    every_seconds: ClassVar[float | None] = None

    async def next_due(self) -> float | None:
        return None


@dataclass(frozen=True)
class Loop:
    name: str
    once: Callable[[], Awaitable[int]]
    """Returns how much it did; unless that is 0, it is called again at once."""
    next_due: Callable[[], Awaitable[float | None]]
    signal: Signal
    longest_wait_seconds: float = 5.0
    """Work that a dead replica left is found within this time."""
    metrics: Metrics = field(default_factory=Metrics)


async def run_loop(loop: Loop) -> None:
    seconds = loop.metrics.loop_seconds.labels(loop.name)
    failures = loop.metrics.loop_failures.labels(loop.name)
    set_log_fields(loop=loop.name)
    with loop.signal.attended():
        while True:
            began = time.perf_counter()
            try:
                wait = await _step(loop)
            except (*OUTAGES, Unavailable) as outage:
                log.warning("loop waits", because=str(outage) or type(outage).__name__)
            except Exception:
                # A bug must not stop the loop: it is logged, and the pass is retried.
                log.exception("loop failed")
            else:
                seconds.observe(time.perf_counter() - began)
                if wait != 0.0:
                    await loop.signal.wait(max(wait, 0.001))
                continue
            failures.inc()
            await asyncio.sleep(AFTER_FAILURE_SECONDS)


async def _step(loop: Loop) -> float:
    """Runs a pass; returns how long to wait until the next."""
    with span(f"loop {loop.name}"):
        if await loop.once():
            return 0.0
        due = await loop.next_due()
    return loop.longest_wait_seconds if due is None else min(due, loop.longest_wait_seconds)


async def stopped(task: asyncio.Task[None]) -> None:
    """Cancels a task until it ends: asyncpg may report a canceled transaction as a failed connection."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=RETRY_SECONDS)
    with suppress(asyncio.CancelledError):
        await task
