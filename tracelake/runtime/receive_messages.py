"""Receives messages of a queue until the process is to stop, no more at once than there is room for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog

from tracelake.errors import TraceError
from tracelake.ports import Delivery, Queue
from tracelake.runtime.retry import sleep_after_outage, sleep_unless

log = structlog.get_logger()

WAIT: Final = timedelta(seconds=20)
STOP_CHECK_SECONDS: Final = 0.5


class FreeSlots:
    """How many more pieces of work may begin."""

    def __init__(self, free: int) -> None:
        self.free = free
        self._freed = asyncio.Event()

    async def wait_for_free(self, stop: asyncio.Event) -> int:
        """Waits until a slot is free and returns how many are; 0 when it is time to stop."""
        while self.free <= 0 and not stop.is_set():
            self._freed.clear()
            await sleep_unless(self._freed, STOP_CHECK_SECONDS)
        return 0 if stop.is_set() else self.free

    def next_freed(self) -> asyncio.Event:
        """An event that is set when another slot becomes free."""
        self._freed.clear()
        return self._freed

    def take_for(self, task: asyncio.Task[Any]) -> None:
        """Takes a slot until the task has ended."""
        self.take(1)
        task.add_done_callback(lambda _: self.release())

    def take(self, count: int) -> None:
        self.free -= count

    def release(self) -> None:
        self.free += 1
        self._freed.set()


@dataclass(frozen=True)
class Ask:
    """What to receive: from which queues, in this order and of each at most so many; and how many in all."""

    queues: Mapping[str, int]
    most: int
    again_when_freed: bool = False
    """More could be received as soon as another slot is free: then a call that still waits is made anew."""


async def receive_messages(
    queue: Queue,
    slots: FreeSlots,
    stop: asyncio.Event,
    *,
    visibility: timedelta,
    ask: Callable[[int], Ask],
) -> AsyncIterator[Sequence[Delivery]]:
    """Batches of messages until `stop`. `ask`: what to receive while so many slots are free."""
    while free := await slots.wait_for_free(stop):
        if deliveries := await _receive(queue, slots, stop, ask(free), visibility):
            yield deliveries


async def _receive(
    queue: Queue, slots: FreeSlots, stop: asyncio.Event, ask: Ask, visibility: timedelta
) -> Sequence[Delivery]:
    # A slot that is freed must not cancel the call: each message that it was about to return would count as delivered,
    # and where tasks are short, a slot is freed during every call.
    freed = slots.next_freed() if ask.again_when_freed else None
    call = queue.receive(ask.queues, max_messages=ask.most, visibility=visibility, wait=WAIT, end_wait=freed)
    receiving, stopped = asyncio.create_task(call), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({receiving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        receiving.cancel()  # unless it is done; what it was about to return is delivered again
        await asyncio.wait({receiving})
    if receiving.cancelled():
        return ()
    try:
        return receiving.result()
    except TraceError as wrong:  # also one that does not pass by itself: work in progress is not dropped for it
        log.warning("nothing received", queue=", ".join(ask.queues), **wrong.as_dict())
        await sleep_after_outage(stop)
        return ()
