"""Retries with backoff: how every process waits for a service or database that does not answer.

The delays come from `domain.task.retry_delay`, as those of tasks and outbox entries do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from itertools import count
from typing import TypeVar

import structlog

from tracelake.domain.task import Backoff, retry_delay
from tracelake.errors import Unavailable

log = structlog.get_logger()
T = TypeVar("T")

BACKOFF = Backoff(0.05, 1.0)
"""Between two calls to a service that does not answer."""

_random = random.Random()  # noqa: S311 - spreads retries; protects nothing


def delay_after(attempt: int, first_seconds: float, longest_seconds: float) -> float:
    """Seconds to wait after this attempt, with jitter: doubling from the first to the longest."""
    return retry_delay(attempt, Backoff(first_seconds, longest_seconds), _random.random())


def delays() -> Iterator[float]:
    """Seconds to wait after each failure in a row."""
    return (delay_after(attempt, BACKOFF.first_seconds, BACKOFF.longest_seconds) for attempt in count(1))


def log_outage(outage: Exception) -> None:
    log.warning("waits", because=str(outage) or type(outage).__name__)


async def retry_with_backoff(
    call: Callable[[], Awaitable[T]],
    stop: asyncio.Event | None = None,
    *,
    is_over: Callable[[], bool] = lambda: False,
    outages: tuple[type[Exception], ...] = (Unavailable,),
    on_outage: Callable[[Exception], None] = log_outage,
) -> T:
    """Calls until there is an answer. Raises the outage once `stop` is set or `is_over()`."""
    stop = stop or asyncio.Event()
    for delay in delays():
        try:
            return await call()
        except outages as outage:
            on_outage(outage)
            if stop.is_set() or is_over():
                raise
        await sleep_unless(stop, delay)
    raise AssertionError("unreachable: delays() never ends")


async def sleep_after_outage(stop: asyncio.Event) -> bool:
    """Sleeps for the longest pause of the backoff, as `sleep_unless` does."""
    return await sleep_unless(stop, BACKOFF.longest_seconds)


async def sleep_unless(stop: asyncio.Event, seconds: float) -> bool:
    """Sleeps; ends early when `stop` is set. Returns whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
    return stop.is_set()


async def sleep_unless_any(events: Collection[asyncio.Event], seconds: float) -> None:
    """Sleeps; ends early when one of the events is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
