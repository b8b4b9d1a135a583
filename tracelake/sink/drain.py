"""Step 10 of one event, for buffered datasets: messages of the Buffer Queue become rows, and rows become an event.

A message only names a publish. The sink trusts the Dispatcher's record of it, and settles a batch there before it
acknowledges the message. So a sink that dies anywhere loses nothing: the message is delivered again, a batch whose rows
are in the table is only settled, and one that was settled is only acknowledged. Outages are waited out while the
messages are held. An unexpected failure is retried a few times, and then left to a later delivery: it must not delay
others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final
from uuid import UUID

import msgspec
import structlog

from tracelake.data.buffered.merge_batches import Applied
from tracelake.errors import Unavailable
from tracelake.ports import Delivery, Queue
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.receive_messages import Ask, FreeSlots, receive_messages
from tracelake.runtime.retry import retry_with_backoff, sleep_after_outage
from tracelake.runtime.tracing import span
from tracelake.sink.notify_failures import notify_failures
from tracelake.sink.write import Away, BatchOutcome, Dead, Failed, Writer
from tracelake.wire.client import DispatcherClient
from tracelake.wire.task.buffers import BufferAnswer, BufferRecord, CommittedBatch, DeadBatch, SettleRequest

log = structlog.get_logger()

VISIBILITY: Final = timedelta(minutes=2)
"""How long a delivery is held without an extension; it is extended well before."""
EXTEND_SECONDS: Final = 40.0
FAILED_TRIES: Final = 3
"""Of one delivery, for batches whose reading failed unexpectedly."""
MAX_REASON: Final = 2_000
PART_BYTES: Final = 16 * 1024 * 1024
"""Of batches that are read by one Spark job, and merged by one transaction a table."""
UNTOLD_BYTES: Final = 1024 * 1024
"""The assumed size of a batch whose producer does not give it; it only affects the speed."""
PARTS_AT_ONCE: Final = 3
"""One is merged, one waits for it, and one is read: no core is idle."""

WORDS: Final = {Dead: "batch is dead", Away: "batch waits", Failed: "batch failed, and is tried again"}


class BufferMessage(msgspec.Struct, frozen=True):
    """What a message is trusted for: which publish, which dataset's table, or which task that failed for good."""

    kind: str
    publish_id: UUID | None = None
    dataset_uuid: UUID | None = None
    task_id: UUID | None = None


@dataclass(frozen=True)
class HeldMessage:
    """A delivery that this sink holds, and its message."""

    delivery: Delivery
    message: BufferMessage


@dataclass(frozen=True)
class Sink:
    queue: Queue
    queue_name: str
    dispatcher: DispatcherClient
    writer: Writer
    most: int = 32
    """Messages taken at once."""
    groups: int = 2
    """Groups in progress at once: while one is merged, the next is read."""
    metrics: Metrics = field(default_factory=Metrics)

    async def drain(self, stop: asyncio.Event) -> None:
        """Until `stop`; then no more is received, and the batches in progress are finished."""
        slots = FreeSlots(self.groups)
        batches = receive_messages(
            self.queue, slots, stop, visibility=VISIBILITY, ask=lambda _: Ask({self.queue_name: self.most}, self.most)
        )
        async with asyncio.TaskGroup() as group:
            async for deliveries in batches:
                slots.take_for(group.create_task(self._handle(deliveries, stop)))

    async def _handle(self, deliveries: Sequence[Delivery], stop: asyncio.Event) -> None:
        """A failure of one group is logged, and ends nothing else: it is delivered again, or becomes a dead letter."""
        crash_point("sink.received")
        held = [HeldMessage(item, message) for item in deliveries if (message := _message(item))]
        keeper = asyncio.create_task(self._keep(held))
        try:
            with span("batches", messages=len(held)):
                await self._do(held, stop)
        except Unavailable:  # it is to stop, and they cannot be finished
            log.info("batches are left for the next sink", messages=len(held))
        except Exception:
            log.exception("batches failed", messages=len(held))
        finally:
            keeper.cancel()

    async def _keep(self, held: Sequence[HeldMessage]) -> None:
        """Keeps holding the deliveries for as long as it takes."""
        while True:
            await asyncio.sleep(EXTEND_SECONDS)
            with suppress(Unavailable):
                await self.queue.extend(self.queue_name, [item.delivery.receipt for item in held], VISIBILITY)

    async def _do(self, held: Sequence[HeldMessage], stop: asyncio.Event) -> None:
        answer = await self._ask(held, stop)
        await self._notify_failures([item.message.task_id for item in held if item.message.task_id], stop)
        await self._prepare(answer, stop)
        turns = asyncio.Semaphore(PARTS_AT_ONCE)
        work = [self._finish(part, answer, stop, turns) for part in _parts(held, answer)]
        for failed in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed

    async def _finish(
        self, held: Sequence[HeldMessage], answer: BufferAnswer, stop: asyncio.Event, turns: asyncio.Semaphore
    ) -> None:
        """A part of a group, until each batch of it is settled and its message acknowledged."""
        left = list(held)
        for tries in count(1):
            async with turns:
                done = await self._outcomes(_about(left, answer))
            await self._settle(done, stop)
            waiting = {outcome.publish_id for outcome in done if isinstance(outcome, Away | Failed)}
            await self._ack([item for item in left if item.message.publish_id not in waiting], stop)
            if tries >= FAILED_TRIES:  # they are delivered again: their messages are not acknowledged
                waiting -= {outcome.publish_id for outcome in done if isinstance(outcome, Failed)}
            left = [item for item in left if item.message.publish_id in waiting]
            if not left or await sleep_after_outage(stop):
                return  # the rest is delivered again
            answer = await self._ask(left, stop)

    async def _ask(self, held: Sequence[HeldMessage], stop: asyncio.Event) -> BufferAnswer:
        publishes = [item.message.publish_id for item in held if item.message.publish_id]
        datasets = [
            item.message.dataset_uuid for item in held if item.message.dataset_uuid and not item.message.publish_id
        ]
        return await retry_with_backoff(lambda: self.dispatcher.buffer_records(publishes, datasets), stop)

    async def _notify_failures(self, tasks: Sequence[UUID], stop: asyncio.Event) -> None:
        """Each that is still failed for good becomes a delivery to every channel of the alert that it raises."""
        if tasks:
            alerts = await retry_with_backoff(lambda: self.dispatcher.failure_alerts(tasks), stop)
            await retry_with_backoff(lambda: asyncio.to_thread(notify_failures, self.writer.dsn, alerts), stop)

    async def _prepare(self, answer: BufferAnswer, stop: asyncio.Event) -> None:
        """Tables that were asked for without a batch; the others are made with theirs."""
        with_batches = {item.dataset_uuid for item in answer.records}
        tables = [table for table in answer.tables if table.dataset_uuid not in with_batches]
        if tables:
            await retry_with_backoff(lambda: asyncio.to_thread(self.writer.prepare, tables), stop)

    async def _outcomes(self, answer: BufferAnswer) -> list[BatchOutcome]:
        """An outcome for each record; an outage of data Postgres is an outcome too, of all of them."""
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

    async def _settle(self, outcomes: Sequence[BatchOutcome], stop: asyncio.Event) -> None:
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
            await retry_with_backoff(lambda: self.dispatcher.settle_buffers(request), stop)
            crash_point("sink.settled")

    async def _ack(self, held: Sequence[HeldMessage], stop: asyncio.Event) -> None:
        receipts = [item.delivery.receipt for item in held]
        if receipts:
            await retry_with_backoff(lambda: self.queue.ack(self.queue_name, receipts), stop)
            crash_point("sink.acknowledged")

    def _count(self, records: Sequence[BufferRecord], outcomes: Sequence[BatchOutcome]) -> None:
        by_id = {item.publish_id: item for item in records}
        now = datetime.now(UTC)
        for outcome in outcomes:
            record = by_id[outcome.publish_id]
            org = str(record.org_id)
            self.metrics.sink_batches.labels(org, type(outcome).__name__).inc()
            if isinstance(outcome, Applied):
                self.metrics.sink_rows.labels(org).inc(outcome.rows)
                self.metrics.sink_lag.labels(org).observe(max(0.0, (now - record.created_at).total_seconds()))
            else:
                log.warning(
                    WORDS[type(outcome)],
                    org=org,
                    dataset=str(record.dataset_uuid),
                    task=str(record.task_id),
                    publish=str(outcome.publish_id),
                    because=outcome.reason,
                )


def _about(held: Sequence[HeldMessage], answer: BufferAnswer) -> BufferAnswer:
    wanted = {item.message.publish_id for item in held}
    return BufferAnswer(records=[item for item in answer.records if item.publish_id in wanted], tables=answer.tables)


def _parts(held: Sequence[HeldMessage], answer: BufferAnswer) -> list[list[HeldMessage]]:
    """Large batches in several parts, so that one is read while another is merged; small ones together."""
    sizes = {item.publish_id: item.batch_size_bytes or UNTOLD_BYTES for item in answer.records}
    parts: list[list[HeldMessage]] = [[]]
    room = PART_BYTES
    for item in held:
        size = sizes.get(item.message.publish_id, 0) if item.message.publish_id else 0
        if parts[-1] and size > room:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(item)
        room -= size
    return parts


def _message(delivery: Delivery) -> BufferMessage | None:
    try:
        return msgspec.json.decode(delivery.body, type=BufferMessage)
    except msgspec.DecodeError as wrong:
        # It is delivered again, and becomes a dead letter of the queue.
        log.warning("not a message for the sink", because=str(wrong), body=delivery.body[:200].decode(errors="replace"))
        return None


def _printable(reason: str) -> str:
    """A reason may quote what a producer wrote, which Postgres may not be able to store."""
    return reason.encode(errors="replace").decode().replace("\0", "?")[:MAX_REASON]
