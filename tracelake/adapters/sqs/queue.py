"""The `Queue` port on SQS standard queues, each with a dead-letter queue. What is added to SQS here:

- Receipts. SQS accepts receipts of deliveries that have ended; only those that this process holds are sent.
- Several queues. They are asked in their order without waiting, then all at once.
- Outages. A call that fails for a reason that may pass is repeated within bounds; a queue that was deleted is looked
  up again, and created where that is allowed. After that QueueUnavailable says what to do.

A receive that is canceled closes its connections. A message that SQS was about to send on one of them is delivered
again when its visibility ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from datetime import timedelta
from math import ceil
from typing import Any, Final

from tracelake.adapters.aws.service import AwsService
from tracelake.adapters.queue_limits import SHORTEST, check_count, check_duration, check_queue, check_receive
from tracelake.adapters.sqs.age import OldestAge
from tracelake.adapters.sqs.dead import DeadLetters
from tracelake.adapters.sqs.holds import Holds
from tracelake.adapters.sqs.messages import BATCH, Entry, Received, entry_of, whole_seconds
from tracelake.adapters.sqs.names import SqsNames
from tracelake.adapters.sqs.requests import AT_ONCE, SqsRequests
from tracelake.errors import QueueUnavailable
from tracelake.ports import DeadLetter, Delivery, MessageId, Outgoing, QueueDepth, Receipt
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import QueueSettings

COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
ENDABLE_SECONDS: Final = 2
"""How long a request waits whose caller may end the wait: it is answered, not cut off, so that no delivery is spent."""
MARGIN: Final = 0.1
"""The largest part of a visibility that a slow answer may have taken."""


class SqsQueue:
    """The `Queue` port on SQS. One instance per process is enough; it belongs to one event loop."""

    def __init__(
        self, settings: QueueSettings, *, max_receives: int = 5, retry_for: timedelta = timedelta(seconds=10)
    ) -> None:
        """Opens nothing yet. `max_receives`: of queues that it creates. `retry_for`: how long a call is repeated."""
        outage: dict[str, Any] = {"unavailable": QueueUnavailable, "retry_for": retry_for}
        self._sqs = AwsService("sqs", settings.region, settings.endpoint, **outage)
        self._cloudwatch = AwsService("cloudwatch", settings.region, settings.cloudwatch_endpoint, **outage)
        self._requests = SqsRequests(self._sqs, SqsNames(self._sqs, settings, max_receives))
        self._ages = OldestAge(self._cloudwatch)
        self._dead = DeadLetters(self._requests)
        self._poll_seconds = settings.poll_seconds
        self._holds = Holds()
        self._polls: set[asyncio.Task[list[Delivery]]] = set()

    async def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        check_queue(queue)
        if messages:
            crash_point("queue.before_publish")
            await self._requests.send(queue, [entry_of(message) for message in messages])
            crash_point("queue.after_publish")

    async def receive(
        self,
        queue: str | Mapping[str, int],
        *,
        max_messages: int,
        visibility: timedelta,
        wait: timedelta = timedelta(),
        end_wait: asyncio.Event | None = None,
    ) -> list[Delivery]:
        queues = {queue: max_messages} if isinstance(queue, str) else queue
        check_receive(queues, max_messages, visibility, wait)
        until = _now() + wait.total_seconds()
        longest = self._poll_seconds if end_wait is None else min(self._poll_seconds, ENDABLE_SECONDS)
        found = await self._look(queues, max_messages, visibility)
        while not found and (left := until - _now()) > 0 and not (end_wait is not None and end_wait.is_set()):
            found = await self._poll(queues, max_messages, visibility, min(ceil(left), longest))
        crash_point("queue.after_receive", when=found)
        return found

    async def extend(self, queue: str, receipts: Sequence[Receipt], visibility: timedelta) -> set[Receipt]:
        check_duration(visibility, "/visibility", at_least=SHORTEST)
        seconds = whole_seconds(visibility)
        until = _now() + seconds
        held = await self._settle(queue, receipts, "change_message_visibility_batch", VisibilityTimeout=seconds)
        for receipt in held:
            self._holds.extend(receipt, until)
        crash_point("queue.after_extend")
        return held

    async def ack(self, queue: str, receipts: Sequence[Receipt]) -> set[Receipt]:
        crash_point("queue.before_ack")
        gone = await self._settle(queue, receipts, "delete_message_batch")
        self._holds.remove(gone)
        crash_point("queue.after_ack")
        return gone

    async def release(self, queue: str, receipts: Sequence[Receipt], delay: timedelta = timedelta()) -> set[Receipt]:
        check_duration(delay, "/delay")
        seconds = whole_seconds(delay)
        free = await self._settle(queue, receipts, "change_message_visibility_batch", VisibilityTimeout=seconds)
        self._holds.remove(free)
        return free

    async def depth(self, queue: str) -> QueueDepth:
        check_queue(queue)
        (ready, in_flight, delayed), dead = await asyncio.gather(self._counts(queue), self._counts(queue, dead=True))
        name = (await self._requests.names.find(queue)).name
        age = await self._ages.of(name) if ready else 0.0
        return QueueDepth(ready, in_flight, delayed, sum(dead), age)

    async def dead_letters(self, queue: str, limit: int) -> list[DeadLetter]:
        check_queue(queue)
        check_count(limit, "/limit")
        return await self._dead.look_at(queue, limit)

    async def redrive(self, queue: str, ids: Sequence[MessageId] | None = None) -> int:
        check_queue(queue)
        return await self._dead.redrive(queue, None if ids is None else set(ids)) if ids is None or ids else 0

    async def close(self) -> None:
        for poll in self._polls:
            poll.cancel()
        await asyncio.gather(*self._polls, return_exceptions=True)
        await self._sqs.close()
        await self._cloudwatch.close()

    async def _look(self, queues: Mapping[str, int], most: int, visibility: timedelta) -> list[Delivery]:
        """What is ready, in the order of the queues."""
        found: list[Delivery] = []
        for queue, limit in queues.items():
            wanted, width = min(limit, most - len(found)), 1
            while wanted > 0:
                sizes = _sizes(wanted, width)
                batches = await asyncio.gather(*(self._take(queue, size, visibility) for size in sizes))
                taken = [delivery for batch in batches for delivery in batch]
                found += taken
                wanted = wanted - len(taken) if len(taken) == sum(sizes) else 0
                width = AT_ONCE  # there are many
        return found

    async def _poll(self, queues: Mapping[str, int], most: int, visibility: timedelta, seconds: int) -> list[Delivery]:
        """Waits on all queues at once, until one has something."""
        polls = [
            self._spawn(self._take(queue, min(limit, most, BATCH), visibility, seconds))
            for queue, limit in queues.items()
        ]
        try:
            waiting = set(polls)
            while waiting and not any(_has_ended_with_something(poll) for poll in polls):
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for poll in polls:
                poll.cancel()
            results = await asyncio.gather(*polls, return_exceptions=True)
        return await self._first(results, most)

    async def _first(self, results: Sequence[list[Delivery] | BaseException], most: int) -> list[Delivery]:
        """What was received. Two queues that answer in the same moment may give more than was asked for."""
        found = [delivery for result in results if isinstance(result, list) for delivery in result]
        for wrong in results:
            if not found and isinstance(wrong, Exception):
                raise wrong
        for delivery in found[most:]:
            await self.release(delivery.queue, [delivery.receipt])
        return found[:most]

    async def _take(self, queue: str, count: int, visibility: timedelta, wait: int = 0) -> list[Delivery]:
        asked = _now()
        messages = await self._requests.receive(queue, count, visibility, wait)
        # Hidden from the moment of the answer on, which may have been under way for as long as the call took.
        seconds = whole_seconds(visibility)
        until = _now() + seconds - min(_now() - asked, MARGIN * seconds)
        for message in messages:
            self._holds.add(queue, message.id, message.receipt, until)
        return [_delivery(queue, message) for message in messages]

    async def _settle(self, queue: str, receipts: Sequence[Receipt], operation: str, **more: int) -> set[Receipt]:
        check_queue(queue)
        entries: list[Entry] = [{"ReceiptHandle": receipt, **more} for receipt in self._holds.held(queue, receipts)]
        return {entry["ReceiptHandle"] for entry in await self._requests.batch(queue, operation, entries)}

    async def _counts(self, queue: str, *, dead: bool = False) -> list[int]:
        answer = await self._requests.call(queue, "get_queue_attributes", dead=dead, AttributeNames=list(COUNTS))
        return [int(answer["Attributes"].get(name, 0)) for name in COUNTS]

    def _spawn(self, work: Coroutine[Any, Any, list[Delivery]]) -> asyncio.Task[list[Delivery]]:
        task = asyncio.create_task(work)
        self._polls.add(task)
        task.add_done_callback(self._polls.discard)
        return task


def _has_ended_with_something(poll: asyncio.Task[list[Delivery]]) -> bool:
    return poll.done() and (poll.cancelled() or poll.exception() is not None or bool(poll.result()))


def _sizes(wanted: int, requests: int) -> list[int]:
    """How many messages each of so many requests at most asks for."""
    return [min(BATCH, wanted - start) for start in range(0, min(wanted, requests * BATCH), BATCH)]


def _delivery(queue: str, message: Received) -> Delivery:
    return Delivery(queue, message.id, message.receipt, message.body, message.receives, message.sent_at)


def _now() -> float:
    return asyncio.get_running_loop().time()
