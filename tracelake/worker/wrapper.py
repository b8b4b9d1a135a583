"""Step 6 of one event: a wake-up is received, and its task claimed, run under a lease, and completed.

Many tasks at once, up to `concurrency`. Outages of Dispatcher and queue are waited out. A wake-up is acknowledged only
when its task is closed or cannot be claimed; so a worker that dies loses nothing: the lease expires, and the task is
queued again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID, uuid4

import msgspec
import structlog

from tracelake.capability.log_context import task_fields
from tracelake.errors import TraceError, Unavailable
from tracelake.ports import Delivery, Queue, Receipt
from tracelake.runtime.background import in_background
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.logs import log_fields
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.receive_messages import receive_messages
from tracelake.runtime.retry import retry_with_backoff, sleep_after_outage
from tracelake.runtime.tracing import span
from tracelake.wire.client import DispatcherClient, TaskClient
from tracelake.wire.task.lifecycle import Claimed, NotClaimed, Wakeup
from tracelake.worker.lease_keeper import VISIBILITY, HeldWakeup, LeaseKeeper
from tracelake.worker.listen_for_stops import listen_for_stops
from tracelake.worker.run_claimed import ClaimedTasks, is_source
from tracelake.worker.run_task import RunsTasks
from tracelake.worker.task_api import WorkerTaskApi
from tracelake.worker.tier_slots import TierSlots

log = structlog.get_logger()

SOURCES = 256
"""Always-on sources that run at once: each has a thread, which is made when it is needed."""
SPARE_THREADS = 8
CLAIMS_AT_ONCE = 2
SLOW_SECONDS = 0.05
"""Many times what a claim takes. One that takes longer delays no other task: more is received, and claimed beside it.
Without this pause each call would be for fewer tasks, and a task cost a quarter more.
"""
Answer = Claimed | NotClaimed
Acknowledger = Coalesced[Delivery, None]


@dataclass(frozen=True)
class Wrapper:
    queue: Queue
    queue_name: str
    """Of the runtime: its bulk tier has another (`domain/flow/tiers.py`)."""
    dispatcher: DispatcherClient
    tasks: TaskClient
    runner: RunsTasks
    worker_id: str
    concurrency: int
    sources: set[WorkerTaskApi] = field(default_factory=set)
    """Of the always-on sources in progress."""
    keepers: set[LeaseKeeper] = field(default_factory=set)
    """Of all tasks in progress."""
    metrics: Metrics = field(default_factory=Metrics)
    normal_share: int = 20
    """Tasks of the normal tier for each one of bulk, while both wait."""
    reserved: int = 1
    """Slots that bulk never takes."""

    async def work(self, stop: asyncio.Event) -> None:
        """Until `stop`; then no more is received, and the tasks in progress are finished."""
        threads = ThreadPoolExecutor(self.concurrency + SOURCES + SPARE_THREADS, "task")
        try:
            async with in_background(listen_for_stops(self.dispatcher, self.keepers)):
                await self._work(stop, threads)
        finally:
            threads.shutdown(wait=False)

    async def _work(self, stop: asyncio.Event, threads: Executor) -> None:
        tiers, ack = TierSlots(self.queue_name, self.concurrency, self.normal_share, self.reserved), self._ack(stop)
        batches = receive_messages(self.queue, tiers.slots, stop, visibility=VISIBILITY, ask=tiers.ask)
        claims = set[asyncio.Task[None]]()
        async with asyncio.TaskGroup() as group:

            def start(delivery: Delivery, answer: Answer) -> asyncio.Task[None]:
                return group.create_task(self._handle(delivery, answer, ack, threads))

            async for deliveries in batches:
                tiers.take_for(deliveries)
                claim = group.create_task(self._begin(deliveries, tiers, start, stop))
                await asyncio.wait({claim}, timeout=SLOW_SECONDS)
                claims = {item for item in (*claims, claim) if not item.done()}
                if len(claims) >= CLAIMS_AT_ONCE:
                    _, claims = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(*claims)
            await asyncio.sleep(0)  # the tasks that were claimed last begin, so that their APIs are among `sources`
            for api in self.sources:  # which would never finish by themselves
                api.stop_requested.set()

    @property
    def _claimed(self) -> ClaimedTasks:
        return ClaimedTasks(self.tasks, self.runner, self.metrics, self.sources, self.keepers)

    def _ack(self, stop: asyncio.Event) -> Acknowledger:
        """One call at a time for each queue, each for all wake-ups that ended since the last."""

        async def acknowledge(deliveries: Sequence[Delivery]) -> list[None]:
            for queue in {delivery.queue for delivery in deliveries}:
                receipts = [delivery.receipt for delivery in deliveries if delivery.queue == queue]
                with suppress(Unavailable):  # this worker is to stop: they are delivered again, and find tasks closed
                    await retry_with_backoff(partial(self.queue.ack, queue, receipts), stop)
            return [None] * len(deliveries)

        return Coalesced(acknowledge, key=lambda delivery: delivery.receipt, at_once=1)

    async def _begin(
        self,
        deliveries: Sequence[Delivery],
        tiers: TierSlots,
        start: Callable[[Delivery, Answer], asyncio.Task[None]],
        stop: asyncio.Event,
    ) -> None:
        """Claims their tasks and starts what is given. Each delivery has a slot, and frees it when it has ended."""
        with span("wake-up", wake_ups=len(deliveries)):
            answers = await self._claim(deliveries, stop)
            for delivery in deliveries:
                answer = answers.get(delivery.receipt)
                task = start(delivery, answer) if answer else None
                if task is None or is_source(answer):  # a source mostly waits, and would never free its slot
                    tiers.free(delivery)
                else:
                    tiers.free_after(task, delivery)

    async def _claim(self, deliveries: Sequence[Delivery], stop: asyncio.Event) -> dict[Receipt, Answer]:
        """All in one call. What is no wake-up, or is refused, is delivered again or becomes a dead letter."""
        readable = [(delivery, task) for delivery in deliveries if (task := _task_of(delivery))]
        if not readable:
            return {}
        crash_point("wrapper.received")
        tasks, claim = [task for _, task in readable], uuid4()
        try:
            answers = await retry_with_backoff(lambda: self.dispatcher.claim_batch(tasks, self.worker_id, claim), stop)
        except Unavailable:
            return {}  # this worker is to stop: they are delivered again
        except TraceError as refusal:
            log.exception("claim refused", tasks=[str(task) for task in tasks], **refusal.as_dict())
            await sleep_after_outage(stop)
            return {}
        return {delivery.receipt: answer for (delivery, _), answer in zip(readable, answers, strict=True)}

    async def _handle(self, delivery: Delivery, answer: Answer, ack: Acknowledger, threads: Executor) -> None:
        """A failure of one wake-up is logged, and ends nothing else: it is delivered again or becomes a dead letter."""
        try:
            if isinstance(answer, Claimed):
                crash_point("wrapper.claimed")
                subject = task_fields(answer)
                with (
                    log_fields(**subject),
                    span("run", **subject),
                    self.metrics.tasks_running.labels(subject["org"]).track_inprogress(),
                ):
                    await self._claimed.run(answer, threads, HeldWakeup(self.queue, delivery))
            else:
                log.info("not claimed", because=answer.reason, body=delivery.body[:200].decode(errors="replace"))
            await ack(delivery)
            crash_point("wrapper.acknowledged")
        except Exception:
            log.exception("wake-up failed", body=delivery.body[:200].decode(errors="replace"))


def _task_of(delivery: Delivery) -> UUID | None:
    try:
        return msgspec.json.decode(delivery.body, type=Wakeup).task_id
    except msgspec.DecodeError:
        log.exception("not a wake-up", body=delivery.body[:200].decode(errors="replace"))
        return None
