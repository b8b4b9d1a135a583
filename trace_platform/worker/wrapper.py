"""Step 6 of one event: a wake-up is received, and its task claimed, run under a lease, and completed.

Many tasks at once, up to `concurrency`. Whatever is away (Dispatcher, queue) is waited for. A wake-up is acknowledged
only when its task is closed or is nobody's to run; so a worker that dies loses nothing: the lease runs out, the task is
queued again, and this wake-up finds it not to be claimed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import msgspec
import structlog

from trace_platform.capability.subject import task_fields
from trace_platform.client import DispatcherClient, TaskClient
from trace_platform.contracts import Claimed, CompleteRequest, TaskPayload, Wakeup
from trace_platform.crash_points import crash_point
from trace_platform.errors import BadInput, Conflict, LeaseLost, Refused, TraceError, Unavailable
from trace_platform.observe.logs import speaking_of
from trace_platform.observe.metrics import Metrics
from trace_platform.observe.tracing import span
from trace_platform.ports import Delivery, Queue
from trace_platform.worker.door import Door
from trace_platform.worker.lease_keeper import VISIBILITY, Held, LeaseKeeper
from trace_platform.worker.run_task import Finished, Runner

log = structlog.get_logger()

WAIT = timedelta(seconds=20)
AFTER_OUTAGE_SECONDS = 1.0
AGAIN_SECONDS = 0.5
"""How often a task that is no longer ours is told to end."""

T = TypeVar("T")


@dataclass(frozen=True)
class Wrapper:
    queue: Queue
    queue_name: str
    dispatcher: DispatcherClient
    tasks: TaskClient
    runner: Runner
    worker_id: str
    concurrency: int
    sources: set[Door] = field(default_factory=set)
    """Of the always-on sources in hand."""
    metrics: Metrics = field(default_factory=Metrics)

    async def work(self, stop: asyncio.Event) -> None:
        """Until `stop`; then no more is received, and what is in hand is finished."""
        slots = asyncio.Semaphore(self.concurrency)
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                await slots.acquire()
                delivery = await self._receive(stop)
                if delivery is None:
                    slots.release()
                    continue
                task = group.create_task(self._handle(delivery))
                task.add_done_callback(lambda _: slots.release())
            for door in self.sources:  # which would never finish by themselves
                door.asked_to_stop.set()

    async def _receive(self, stop: asyncio.Event) -> Delivery | None:
        asked = asyncio.create_task(
            self.queue.receive(self.queue_name, max_messages=1, visibility=VISIBILITY, wait=WAIT)
        )
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({asked, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not asked.done():
            asked.cancel()  # what it was about to return is delivered again
        try:
            found = await asked
        except asyncio.CancelledError:
            return None
        except Unavailable as away:
            log.warning("the queue is away", because=away.message)
            await asyncio.sleep(AFTER_OUTAGE_SECONDS)
            return None
        return found[0] if found else None

    async def _handle(self, delivery: Delivery) -> None:
        """What goes wrong with one wake-up is said, and ends nothing else: it comes again, or becomes a dead letter."""
        try:
            wake_up = msgspec.json.decode(delivery.body, type=Wakeup)
            with speaking_of(task=wake_up.task_id), span("wake-up", task=wake_up.task_id):
                await self._follow(wake_up, delivery)
        except Exception:
            log.exception("wake-up failed", body=delivery.body[:200].decode(errors="replace"))

    async def _follow(self, wake_up: Wakeup, delivery: Delivery) -> None:
        crash_point("wrapper.received")
        claimed = await self._patiently(lambda: self.dispatcher.claim(wake_up.task_id, self.worker_id))
        if isinstance(claimed, Claimed):
            crash_point("wrapper.claimed")
            subject = task_fields(claimed)
            with speaking_of(**subject), span("run", **subject), self.metrics.in_hand.track_inprogress():
                await self._run_claimed(claimed, delivery)
        else:
            log.info("not claimed", because=claimed.reason)
        await self._patiently(lambda: self.queue.ack(self.queue_name, [delivery.receipt]))
        crash_point("wrapper.acknowledged")

    async def _run_claimed(self, claimed: Claimed, delivery: Delivery) -> None:
        door = Door(claimed, self.tasks)
        keeper = LeaseKeeper(claimed, door, self.tasks, Held(self.queue, self.queue_name, delivery))
        lease = asyncio.create_task(keeper.run())
        work = asyncio.create_task(asyncio.to_thread(self.runner.run, claimed, door))
        if claimed.task.timeout_seconds is None:  # it runs until it is told to stop
            self.sources.add(door)
        log.info("runs", operator=claimed.task.operator)
        outcome, began = "Lost", time.perf_counter()
        try:
            await asyncio.wait({lease, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                log.warning("lease lost", because=lease.result())
                door.lost.set()
                await self._end(work, claimed)
                return
            crash_point("wrapper.operator_done")
            outcome = await self._report(door, work.result(), lease)
        finally:
            self.sources.discard(door)
            lease.cancel()
            door.lost.set()
            self._count(claimed.task, outcome, time.perf_counter() - began)

    async def _end(self, work: asyncio.Task[Finished], claimed: Claimed) -> None:
        """Its slot is free when it has ended, and not before. Spark forgets an interrupt that came before its job."""
        while not work.done():
            await asyncio.to_thread(self.runner.cancel, claimed)
            await asyncio.wait({work}, timeout=AGAIN_SECONDS)

    async def _report(self, door: Door, finished: Finished, lease: asyncio.Task[str]) -> str:
        """Again and again until it is heard, or the lease is lost: then it no longer matters. How it ended."""
        while not lease.done():
            try:
                answer = await self.tasks.complete(door.token, finished.request)
            except Unavailable as away:
                log.warning("completion not heard", because=away.message)
                await asyncio.sleep(AFTER_OUTAGE_SECONDS)
            except (LeaseLost, Refused, BadInput) as refusal:
                log.warning("completion refused", **refusal.as_dict())
                if isinstance(refusal, LeaseLost) or finished.request.status == "Failed":
                    return "Refused"
                finished = Finished(_failed(finished.request, refusal))
            else:
                crash_point("wrapper.completed")
                log.info("completed", status=answer.status)
                if finished.after_commit is not None and answer.status == "Completed":
                    await asyncio.to_thread(finished.after_commit)
                return answer.status
        return "Lost"

    def _count(self, task: TaskPayload, outcome: str, seconds: float) -> None:
        self.metrics.worker_tasks.labels(task.job.dag_name, task.job.name, outcome).inc()
        self.metrics.worker_seconds.labels(task.job.dag_name, task.job.name).observe(seconds)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await ask()
            except Unavailable as away:
                log.warning("waits", because=away.message)
                await asyncio.sleep(AFTER_OUTAGE_SECONDS)


def _failed(request: CompleteRequest, refusal: TraceError) -> CompleteRequest:
    """What was refused is said, so that people see it and, if that may help, the task is tried again."""
    return CompleteRequest(
        task_id=request.task_id,
        attempt=request.attempt,
        lease_token=request.lease_token,
        status="Failed",
        error_message=f"the completion was refused: {refusal.message}",
        retryable=isinstance(refusal, Conflict),
    )
