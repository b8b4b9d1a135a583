"""The receive loop that worker and sink share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.support.waiting import SECONDS, until
from tracelake.adapters.queue_pg import PgQueue
from tracelake.errors import InvalidRequest
from tracelake.ports import Delivery, Outgoing
from tracelake.runtime.receive_messages import Ask, FreeSlots, receive_messages
from tracelake.sink.drain import Sink

pytestmark = pytest.mark.anyio


class WatchedQueue(PgQueue):
    """Knows how many calls of `receive` are in progress."""

    receiving = 0
    refusals = 0

    async def receive(self, *arguments: Any, **options: Any) -> list[Delivery]:
        if self.refusals:
            self.refusals -= 1
            raise InvalidRequest("not a queue", where="/queue")
        self.receiving += 1
        try:
            return await super().receive(*arguments, **options)
        finally:
            self.receiving -= 1

    async def until_receiving(self) -> None:
        await until(lambda: self.receiving, "the loop waits for messages")


@asynccontextmanager
async def watched(dsn: str) -> AsyncIterator[WatchedQueue]:
    queue = WatchedQueue(dsn)
    try:
        yield queue
    finally:
        await queue.close()


async def test_a_sink_that_is_canceled_leaves_no_receive_behind(queue_db: str) -> None:
    """Such a call would take a message that no process handles."""
    async with watched(queue_db) as queue:
        sink = Sink(queue, "buffer", cast("Any", None), cast("Any", None))
        draining = asyncio.create_task(sink.drain(asyncio.Event()))
        await queue.until_receiving()
        draining.cancel()
        await asyncio.wait({draining})
        assert queue.receiving == 0


async def test_a_stop_ends_the_wait_for_messages(queue_db: str) -> None:
    async with watched(queue_db) as queue:
        stop, batches = asyncio.Event(), list[int]()
        receiving = asyncio.create_task(_collect(queue, FreeSlots(1), stop, batches))
        await queue.until_receiving()
        stop.set()
        async with asyncio.timeout(SECONDS):
            await receiving
        assert (batches, queue.receiving) == ([], 0)


async def test_nothing_is_received_while_every_slot_is_taken(queue_db: str) -> None:
    async with watched(queue_db) as queue:
        slots, stop, batches = FreeSlots(1), asyncio.Event(), list[int]()
        slots.take_for(work := asyncio.create_task(stop.wait()))
        receiving = asyncio.create_task(_collect(queue, slots, asyncio.Event(), batches))
        await queue.publish("buffer", [Outgoing(b"1")])
        assert (await queue.depth("buffer")).ready == 1
        assert not queue.receiving
        stop.set()
        await work
        async with asyncio.timeout(SECONDS):
            await receiving
        assert batches == [1]


async def test_a_queue_that_refuses_does_not_end_the_loop(queue_db: str) -> None:
    async with watched(queue_db) as queue:
        queue.refusals = 1
        await queue.publish("buffer", [Outgoing(b"1")])
        batches = list[int]()
        async with asyncio.timeout(SECONDS):
            await _collect(queue, FreeSlots(1), asyncio.Event(), batches)
        assert (batches, queue.refusals) == ([1], 0)


async def _collect(queue: PgQueue, slots: FreeSlots, stop: asyncio.Event, batches: list[int]) -> None:
    """Until the first batch."""
    minute = timedelta(minutes=1)

    def ask(free: int) -> Ask:
        return Ask({"buffer": free}, free)

    async for deliveries in receive_messages(queue, slots, stop, visibility=minute, ask=ask):
        batches.append(len(deliveries))
        return
