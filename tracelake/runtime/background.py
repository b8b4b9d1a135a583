"""Runs a coroutine while a block of code runs, or again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import structlog

log = structlog.get_logger()


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Cancels the work when the block ends, and waits until it has ended."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


async def repeat(
    work: Callable[[], Awaitable[object]], every: float, outages: tuple[type[Exception], ...], not_done: str
) -> NoReturn:
    """Until canceled, over outages too: `not_done` is the line that the log gets for one."""
    while True:
        try:
            await work()
        except outages as outage:
            log.warning(not_done, because=str(outage) or type(outage).__name__)
        await asyncio.sleep(every)
