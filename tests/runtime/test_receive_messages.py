"""The receive loop that worker and sink share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import asyncpg
import pytest

from tests.support.waiting import SECONDS, until
from tracelake.adapters.pg.queue import PgQueue
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
        stop, received = asyncio.Event(), list[Delivery]()
        receiving = asyncio.create_task(_collect(queue, FreeSlots(1), stop, received))
        await queue.until_receiving()
        stop.set()
        async with asyncio.timeout(SECONDS):
            await receiving
        assert (received, queue.receiving) == ([], 0)


async def test_nothing_is_received_while_every_slot_is_taken(queue_db: str) -> None:
    async with watched(queue_db) as queue:
        slots, stop, received = FreeSlots(1), asyncio.Event(), list[Delivery]()
        slots.take_for(work := asyncio.create_task(stop.wait()))
        receiving = asyncio.create_task(_collect(queue, slots, asyncio.Event(), received))
        await queue.publish("buffer", [Outgoing(b"1")])
        assert (await queue.depth("buffer")).ready == 1
        assert not queue.receiving
        stop.set()
        await work
        async with asyncio.timeout(SECONDS):
            await receiving
        assert len(received) == 1


async def test_a_queue_that_refuses_does_not_end_the_loop(queue_db: str) -> None:
    async with watched(queue_db) as queue:
        queue.refusals = 1
        await queue.publish("buffer", [Outgoing(b"1")])
        received = list[Delivery]()
        async with asyncio.timeout(SECONDS):
            await _collect(queue, FreeSlots(1), asyncio.Event(), received)
        assert (len(received), queue.refusals) == (1, 0)


async def test_a_slot_that_is_freed_takes_back_no_message_that_is_being_received(queue_db: str) -> None:
    """Each message that is taken back counts as delivered once more, and would soon be a dead letter."""
    async with watched(queue_db) as queue, locked_messages(queue_db) as unlock:
        slots, work_ends = FreeSlots(2), asyncio.Event()
        slots.take_for(work := asyncio.create_task(work_ends.wait()))
        received = list[Delivery]()
        receiving = asyncio.create_task(_collect(queue, slots, asyncio.Event(), received, again_when_freed=True))
        await until(lambda: is_blocked(queue_db), "the call waits for the lock")
        work_ends.set()
        await work
        await asyncio.sleep(0)  # the loop has learnt of the slot
        await unlock()
        async with asyncio.timeout(SECONDS):
            await receiving
        assert [delivery.receives for delivery in received] == [1]


async def test_a_slot_that_is_freed_ends_the_wait_of_those_who_could_receive_more(queue_db: str) -> None:
    async with watched(queue_db) as queue:
        slots, work_ends, received = FreeSlots(2), asyncio.Event(), list[Delivery]()
        slots.take_for(work := asyncio.create_task(work_ends.wait()))
        limits = list[int]()
        receiving = asyncio.create_task(
            _collect(queue, slots, asyncio.Event(), received, again_when_freed=True, asked=limits)
        )
        await queue.until_receiving()
        work_ends.set()
        await work
        await until(lambda: limits == [1, 2], "it asks again, for more")
        await queue.publish("buffer", [Outgoing(b"1"), Outgoing(b"2")])
        async with asyncio.timeout(SECONDS):
            await receiving
        assert len(received) == 2


@asynccontextmanager
async def locked_messages(dsn: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """One message in a queue that answers only when it is unlocked."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SELECT pgqueue.publish('buffer', ARRAY['1'::bytea], ARRAY[interval '0'])")
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("LOCK TABLE pgqueue.messages IN ACCESS EXCLUSIVE MODE")
        yield transaction.commit
    finally:
        await connection.close()


async def is_blocked(dsn: str) -> bool:
    connection = await asyncpg.connect(dsn)
    try:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%receive_any%'"
        return bool(await connection.fetchval(waiting))
    finally:
        await connection.close()


async def _collect(
    queue: PgQueue,
    slots: FreeSlots,
    stop: asyncio.Event,
    received: list[Delivery],
    *,
    again_when_freed: bool = False,
    asked: list[int] | None = None,
) -> None:
    """Until the first batch. `asked`: for how many, each time."""
    minute = timedelta(minutes=1)

    def ask(free: int) -> Ask:
        if asked is not None:
            asked.append(free)
        return Ask({"buffer": free}, free, again_when_freed)

    async for deliveries in receive_messages(queue, slots, stop, visibility=minute, ask=ask):
        received.extend(deliveries)
        return
