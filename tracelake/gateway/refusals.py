"""Counts the users and tokens that the Gateway refuses, and sends the counts to the audit once a minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import structlog
from fastapi import Request, Response

from tracelake.errors import TraceError
from tracelake.runtime.listeners import on_refusal
from tracelake.runtime.request_middleware import address_of
from tracelake.runtime.retry import sleep_unless
from tracelake.wire.internal.refusals import STORED_EVERY_SECONDS, Refusal, RefusalCounts, RefusedAs

log = structlog.get_logger()

Send = Callable[[Sequence[Refusal]], Awaitable[Any]]
LAST_SECONDS: Final = 5.0
"""How long the Gateway waits for the last counts to be stored before it ends."""
_SHOWN: Final = "trace.shown"


def note_shown(request: Request, kind: RefusedAs, who: str) -> None:
    """What is to be counted if this call is refused as unauthenticated."""
    request.scope[_SHOWN] = kind, who


def counting(counts: RefusalCounts) -> Callable[[Request, Exception], Awaitable[Response]]:
    """The handler of calls that are refused as unauthenticated. One that shows no token is not counted."""

    async def refused(request: Request, refusal: Exception) -> Response:
        if shown := request.scope.get(_SHOWN):
            kind, who = shown
            counts.add(kind, who, address_of(request))
        return await on_refusal(request, refusal)

    return refused


@asynccontextmanager
async def sending(counts: RefusalCounts, send: Send, every: float = STORED_EVERY_SECONDS) -> AsyncIterator[None]:
    """Sends while the block runs, and what is left when it ends."""
    stop = asyncio.Event()
    task = asyncio.create_task(_send_until(stop, counts, send, every))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait([task], timeout=LAST_SECONDS)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def send_counts(counts: RefusalCounts, send: Send) -> None:
    if not (taken := counts.take()):
        return
    try:
        await send(taken)
    except TraceError as failed:
        counts.put_back(taken)
        log.warning("refusals_not_stored", because=failed.message)


async def _send_until(stop: asyncio.Event, counts: RefusalCounts, send: Send, every: float) -> None:
    is_last = False
    while not is_last:
        is_last = await sleep_unless(stop, every)  # before it sends: what is refused meanwhile is sent by one more turn
        await send_counts(counts, send)
