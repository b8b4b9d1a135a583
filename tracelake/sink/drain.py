"""Step 10 of one event, for buffered datasets: messages of the Buffer Queue become rows, and rows become an event.

A message only says which publish it is about. What is believed is the Dispatcher's record; what is acknowledged is
settled there. So a sink that dies anywhere loses nothing: the message comes again, a batch whose rows are in is only
settled, and one that was settled is only acknowledged. Whatever is away is waited for, with the messages in hand. A
fault that nobody foresaw is tried a few times, and then left to a later delivery: it must not hold up others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final, TypeVar
from uuid import UUID

import msgspec
import structlog

from tracelake.data.buffered.merge_batches import Applied
from tracelake.errors import Unavailable
from tracelake.ports import Delivery, Queue
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.tracing import span
from tracelake.sink.notify_failures import notify_failures
from tracelake.sink.write import Away, Dead, Failed, Outcome, Writer
from tracelake.wire.client import DispatcherClient
from tracelake.wire.task_messages import BufferAnswer, BufferRecord, CommittedBatch, DeadBatch, SettleRequest

log = structlog.get_logger()

WAIT: Final = timedelta(seconds=20)
VISIBILITY: Final = timedelta(minutes=2)
"""How long messages stay ours without a word; they are extended well before."""
EXTEND_SECONDS: Final = 40.0
AFTER_OUTAGE_SECONDS = 1.0
FAILED_TRIES: Final = 3
"""Of one delivery, for batches whose reading failed in a way that nobody foresaw."""
MAX_REASON: Final = 2_000
PART_BYTES: Final = 16 * 1024 * 1024
"""Of batches that are read by one Spark job, and merged by one transaction a table."""
UNTOLD_BYTES: Final = 1024 * 1024
"""What a batch is taken for whose producer does not say its size; it is only a matter of speed."""
PARTS_AT_ONCE: Final = 3
"""One is merged, one waits for it, and one is read: no core is idle."""

WORDS: Final = {Dead: "batch is dead", Away: "batch waits", Failed: "batch failed, and is tried again"}
T = TypeVar("T")


class Message(msgspec.Struct, frozen=True):
    """What a message is trusted to say: which publish, which dataset's table, or which task that failed for good."""

    kind: str
    publish_id: UUID | None = None
    dataset_uuid: UUID | None = None
    task_id: UUID | None = None


class _Stopped(Exception):
    """It is time to stop, and what is in hand cannot be finished."""


@dataclass(frozen=True)
class Held:
    """A message in our hands, and what it is about."""

    delivery: Delivery
    message: Message


@dataclass(frozen=True)
class Sink:
    queue: Queue
    queue_name: str
    dispatcher: DispatcherClient
    writer: Writer
    most: int = 32
    """Messages taken at once."""
    groups: int = 2
    """Groups in hand at once: while one is merged, the next is read."""
    metrics: Metrics = field(default_factory=Metrics)

    async def drain(self, stop: asyncio.Event) -> None:
        """Until `stop`; then no more is received, and what is in hand is finished."""
        free = asyncio.Semaphore(self.groups)
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                await free.acquire()
                deliveries = await self._receive(stop)
                if not deliveries:
                    free.release()
                    continue
                task = group.create_task(self._handle(deliveries, stop))
                task.add_done_callback(lambda _: free.release())

    async def _receive(self, stop: asyncio.Event) -> Sequence[Delivery]:
        asked = asyncio.create_task(
            self.queue.receive(self.queue_name, max_messages=self.most, visibility=VISIBILITY, wait=WAIT)
        )
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({asked, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not asked.done():
            asked.cancel()  # what it was about to return is delivered again
        try:
            return await asked
        except asyncio.CancelledError:
            return ()
        except Unavailable as away:
            log.warning("the queue is away", because=away.message)
            await asyncio.sleep(AFTER_OUTAGE_SECONDS)
            return ()

    async def _handle(self, deliveries: Sequence[Delivery], stop: asyncio.Event) -> None:
        """What goes wrong with one group is said, and ends nothing else: it comes again, or becomes a dead letter."""
        crash_point("sink.received")
        held = [Held(item, message) for item in deliveries if (message := _message(item))]
        keeper = asyncio.create_task(self._keep(held))
        try:
            with span("batches", messages=len(held)):
                await self._do(held, stop)
        except _Stopped:
            log.info("batches are left for the next sink", messages=len(held))
        except Exception:
            log.exception("batches failed", messages=len(held))
        finally:
            keeper.cancel()

    async def _keep(self, held: Sequence[Held]) -> None:
        """They stay ours for as long as it takes."""
        while True:
            await asyncio.sleep(EXTEND_SECONDS)
            with suppress(Unavailable):
                await self.queue.extend(self.queue_name, [item.delivery.receipt for item in held], VISIBILITY)

    async def _do(self, held: Sequence[Held], stop: asyncio.Event) -> None:
        answer = await self._ask(held, stop)
        await self._notify_failures([item.message.task_id for item in held if item.message.task_id], stop)
        await self._prepare(answer, stop)
        turns = asyncio.Semaphore(PARTS_AT_ONCE)
        work = [self._finish(part, answer, stop, turns) for part in _parts(held, answer)]
        for failed in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed

    async def _finish(
        self, held: Sequence[Held], answer: BufferAnswer, stop: asyncio.Event, turns: asyncio.Semaphore
    ) -> None:
        """A part of a group, until each batch of it is settled and its message acknowledged."""
        left = list(held)
        for tries in count(1):
            async with turns:
                done = await self._outcomes(_about(left, answer))
            await self._settle(done, stop)
            waiting = {outcome.publish_id for outcome in done if isinstance(outcome, Away | Failed)}
            await self._ack([item for item in left if item.message.publish_id not in waiting], stop)
            if tries >= FAILED_TRIES:  # they come again by themselves: their messages are not acknowledged
                waiting -= {outcome.publish_id for outcome in done if isinstance(outcome, Failed)}
            left = [item for item in left if item.message.publish_id in waiting]
            if not left or await _pause(stop):
                return  # what is left comes again, to whoever is there then
            answer = await self._ask(left, stop)

    async def _ask(self, held: Sequence[Held], stop: asyncio.Event) -> BufferAnswer:
        publishes = [item.message.publish_id for item in held if item.message.publish_id]
        datasets = [
            item.message.dataset_uuid for item in held if item.message.dataset_uuid and not item.message.publish_id
        ]
        return await self._patiently(lambda: self.dispatcher.buffer_records(publishes, datasets), stop)

    async def _notify_failures(self, tasks: Sequence[UUID], stop: asyncio.Event) -> None:
        """Each becomes a delivery to every channel of the alert that it raises; if it still is failed for good."""
        if tasks:
            alerts = await self._patiently(lambda: self.dispatcher.failure_alerts(tasks), stop)
            await self._patiently(lambda: asyncio.to_thread(notify_failures, self.writer.dsn, alerts), stop)

    async def _prepare(self, answer: BufferAnswer, stop: asyncio.Event) -> None:
        """Tables that were asked for without a batch; the others are made with theirs."""
        with_batches = {item.dataset_uuid for item in answer.records}
        tables = [table for table in answer.tables if table.dataset_uuid not in with_batches]
        if tables:
            await self._patiently(lambda: asyncio.to_thread(self.writer.prepare, tables), stop)

    async def _outcomes(self, answer: BufferAnswer) -> list[Outcome]:
        """What the records say to do; data Postgres being away is an outcome too, of all of them."""
        open_ones = [item for item in answer.records if item.status != "Committed"]
        if not open_ones:
            return []
        began = time.perf_counter()
        try:
            done = await asyncio.to_thread(self.writer.write, open_ones, answer.tables)
        except Unavailable as away:
            log.warning("batches wait", because=away.message, batches=len(open_ones))
            return [Away(item.publish_id, away.message) for item in open_ones]
        self.metrics.sink_seconds.observe(time.perf_counter() - began)
        self._count(open_ones, done)
        return done

    async def _settle(self, outcomes: Sequence[Outcome], stop: asyncio.Event) -> None:
        committed = [
            CommittedBatch(publish_id=outcome.publish_id, seq=outcome.seq, rows=outcome.rows, bytes=outcome.bytes)
            for outcome in outcomes
            if isinstance(outcome, Applied)
        ]
        dead = [
            DeadBatch(publish_id=outcome.publish_id, reason=_printable(outcome.reason), line=outcome.line)
            for outcome in outcomes
            if isinstance(outcome, Dead)
        ]
        if committed or dead:
            crash_point("sink.before_settle")
            request = SettleRequest(committed=committed, dead=dead)
            await self._patiently(lambda: self.dispatcher.settle_buffers(request), stop)
            crash_point("sink.settled")

    async def _ack(self, held: Sequence[Held], stop: asyncio.Event) -> None:
        receipts = [item.delivery.receipt for item in held]
        if receipts:
            await self._patiently(lambda: self.queue.ack(self.queue_name, receipts), stop)
            crash_point("sink.acknowledged")

    def _count(self, records: Sequence[BufferRecord], outcomes: Sequence[Outcome]) -> None:
        by_id = {item.publish_id: item for item in records}
        now = datetime.now(UTC)
        for outcome in outcomes:
            self.metrics.sink_batches.labels(type(outcome).__name__).inc()
            if isinstance(outcome, Applied):
                self.metrics.sink_rows.inc(outcome.rows)
                self.metrics.sink_lag.observe(max(0.0, (now - by_id[outcome.publish_id].created_at).total_seconds()))
            else:
                record = by_id[outcome.publish_id]
                log.warning(
                    WORDS[type(outcome)],
                    org=str(record.org_id),
                    dataset=str(record.dataset_uuid),
                    task=str(record.task_id),
                    publish=str(outcome.publish_id),
                    because=outcome.reason,
                )

    async def _patiently(self, ask: Callable[[], Awaitable[T]], stop: asyncio.Event) -> T:
        """Again and again until it is heard, or it is time to stop: then the messages come again."""
        while True:
            try:
                return await ask()
            except Unavailable as away:
                log.warning("waits", because=away.message)
                if await _pause(stop):
                    raise _Stopped from None


def _about(held: Sequence[Held], answer: BufferAnswer) -> BufferAnswer:
    wanted = {item.message.publish_id for item in held}
    return BufferAnswer(records=[item for item in answer.records if item.publish_id in wanted], tables=answer.tables)


def _parts(held: Sequence[Held], answer: BufferAnswer) -> list[list[Held]]:
    """Large batches in several parts, so that one is read while another is merged; small ones together."""
    sizes = {item.publish_id: item.batch_size_bytes or UNTOLD_BYTES for item in answer.records}
    parts: list[list[Held]] = [[]]
    room = PART_BYTES
    for item in held:
        size = sizes.get(item.message.publish_id, 0) if item.message.publish_id else 0
        if parts[-1] and size > room:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(item)
        room -= size
    return parts


async def _pause(stop: asyncio.Event) -> bool:
    """A moment; whether it is time to stop."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), AFTER_OUTAGE_SECONDS)
    return stop.is_set()


def _message(delivery: Delivery) -> Message | None:
    try:
        return msgspec.json.decode(delivery.body, type=Message)
    except msgspec.DecodeError as wrong:
        # It comes again, and becomes a dead letter of the queue.
        log.warning("not a message for the sink", because=str(wrong), body=delivery.body[:200].decode(errors="replace"))
        return None


def _printable(reason: str) -> str:
    """A reason may quote what a producer wrote, which need not be text that anybody can store."""
    return reason.encode(errors="replace").decode().replace("\0", "?")[:MAX_REASON]
