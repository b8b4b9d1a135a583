"""A loop ends on its stop signal, whatever it was doing."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.support.waiting import SECONDS
from tracelake.dispatcher.maintenance.loop import Loop, run_loop, stopped
from tracelake.dispatcher.signal import Signal

pytestmark = pytest.mark.anyio


async def test_a_loop_stops_although_its_cancel_came_out_as_an_outage() -> None:
    """As asyncpg does when it is cut off inside a transaction: the rollback fails, and masks the cancellation."""
    begun = asyncio.Event()

    async def once() -> int:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if not swallowed:
                swallowed.append(True)
                raise asyncpg.InterfaceError("another operation is in progress") from None
            raise
        return 0

    async def never() -> float | None:
        return None

    swallowed: list[bool] = []
    task = asyncio.create_task(run_loop(Loop("test", once, never, Signal())))
    await begun.wait()
    async with asyncio.timeout(SECONDS):
        await stopped(task)
    assert swallowed
