"""Step 6 of one event: a wake-up is received, and its task claimed, run under a lease, and completed.

Many tasks at once, up to `concurrency`. Whatever is away (Dispatcher, queue) is waited for. A wake-up is acknowledged
only when its task is closed or is nobody's to run; so a worker that dies loses nothing: the lease runs out, the task is
queued again, and this wake-up finds it not to be claimed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar
from uuid import UUID, uuid4

import msgspec
import structlog

from tracelake.capability.log_context import task_fields
from tracelake.errors import BadInput, Conflict, Incompatible, LeaseLost, Refused, TraceError, Unavailable
from tracelake.ports import Delivery, Queue, Receipt
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.logs import speaking_of
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.tracing import span
from tracelake.wire.client import DispatcherClient, TaskClient
from tracelake.wire.task_messages import MAX_CLAIMS, Claimed, CompleteRequest, NotClaimed, TaskPayload, Wakeup
from tracelake.worker.lease_keeper import VISIBILITY, Held, LeaseKeeper
from tracelake.worker.listen_for_stops import listen_for_stops
from tracelake.worker.run_task import MAX_ERROR_CHARS, Finished, RunsTasks
from tracelake.worker.task_api import WorkerTaskApi

log = structlog.get_logger()

WAIT = timedelta(seconds=20)
AFTER_OUTAGE_SECONDS = 1.0
AGAIN_SECONDS = 0.5
"""How often a task that is no longer ours is told to end."""
STOP_LOOK_SECONDS = 0.5

T = TypeVar("T")

Answer = Claimed | NotClaimed


@dataclass(frozen=True)
class Wrapper:
    queue: Queue
    queue_name: str
    dispatcher: DispatcherClient
    tasks: TaskClient
    runner: RunsTasks
    worker_id: str
    concurrency: int
    sources: set[WorkerTaskApi] = field(default_factory=set)
    """Of the always-on sources in hand."""
    keepers: set[LeaseKeeper] = field(default_factory=set)
    """Of all tasks in hand."""
    metrics: Metrics = field(default_factory=Metrics)

    async def work(self, stop: asyncio.Event) -> None:
        """Until `stop`; then no more is received, and what is in hand is finished."""
        hearing = asyncio.create_task(listen_for_stops(self.dispatcher, self.keepers))
        try:
            await self._work(stop)
        finally:
            hearing.cancel()
            await asyncio.wait({hearing})

    async def _work(self, stop: asyncio.Event) -> None:
        slots, settled = _Slots(self.concurrency), _Settled(self, stop)
        async with asyncio.TaskGroup() as group:
            while free := await slots.some_free(stop):
                deliveries = await self._receive(stop, free)
                with span("wake-up", wake_ups=len(deliveries)) if deliveries else nullcontext():
                    for delivery, answer in await self._claim(deliveries, stop):
                        task = group.create_task(self._handle(delivery, answer, settled))
                        if not _is_source(answer):
                            slots.take_one_for(task)
            await asyncio.sleep(0)  # what was claimed last begins, so that its door is among them
            for api in self.sources:  # which would never finish by themselves
                api.stop_requested.set()

    async def _receive(self, stop: asyncio.Event, most: int) -> Sequence[Delivery]:
        asked = asyncio.create_task(
            self.queue.receive(self.queue_name, max_messages=most, visibility=VISIBILITY, wait=WAIT)
        )
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({asked, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            asked.cancel()  # unless it is done; what it was about to return is delivered again
            await asyncio.wait({asked})
        try:
            return asked.result()
        except asyncio.CancelledError:
            return ()
        except TraceError as wrong:  # also what does not pass by itself: tasks in hand are not dropped for it
            log.warning("nothing received", **wrong.as_dict())
            await asyncio.sleep(AFTER_OUTAGE_SECONDS)
            return ()

    async def _claim(self, deliveries: Sequence[Delivery], stop: asyncio.Event) -> list[tuple[Delivery, Answer]]:
        """All in one call. One that is no wake-up, or whose claim is refused, comes again or becomes a dead letter."""
        readable = [(delivery, task) for delivery in deliveries if (task := _task_of(delivery))]
        if not readable:
            return []
        crash_point("wrapper.received")
        tasks, claim = [task for _, task in readable], uuid4()
        try:
            answers = await retry_with_backoff(lambda: self.dispatcher.claim_batch(tasks, self.worker_id, claim), stop)
        except Unavailable:
            return []  # we are to end: they come again, to another
        except TraceError as refusal:
            log.exception("claim refused", tasks=[str(task) for task in tasks], **refusal.as_dict())
            await asyncio.sleep(AFTER_OUTAGE_SECONDS)
            return []
        return [(delivery, answer) for (delivery, _), answer in zip(readable, answers, strict=True)]

    async def _handle(self, delivery: Delivery, answer: Answer, settled: _Settled) -> None:
        """What goes wrong with one wake-up is said, and ends nothing else: it comes again, or becomes a dead letter."""
        try:
            if isinstance(answer, Claimed):
                crash_point("wrapper.claimed")
                subject = task_fields(answer)
                with speaking_of(**subject), span("run", **subject), self.metrics.in_hand.track_inprogress():
                    await self._run_claimed(answer, delivery)
            else:
                log.info("not claimed", because=answer.reason, body=delivery.body[:200].decode(errors="replace"))
            await settled.ack(delivery)
            crash_point("wrapper.acknowledged")
        except Exception:
            log.exception("wake-up failed", body=delivery.body[:200].decode(errors="replace"))

    async def _run_claimed(self, claimed: Claimed, delivery: Delivery) -> None:
        api = WorkerTaskApi(claimed, self.tasks)
        keeper = LeaseKeeper(claimed, api, self.tasks, Held(self.queue, self.queue_name, delivery))
        lease = asyncio.create_task(keeper.run())
        work = asyncio.create_task(asyncio.to_thread(self.runner.run, claimed, api))
        if _is_source(claimed):
            self.sources.add(api)
        self.keepers.add(keeper)
        log.info("runs", operator=claimed.task.operator)
        outcome, began = "Lost", time.perf_counter()
        try:
            await asyncio.wait({lease, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                log.warning("lease lost", because=lease.result())
                api.lost.set()
                await self._end(work, claimed)
                return
            crash_point("wrapper.operator_done")
            outcome = await self._report(api, claimed.task, work.result(), lease)
        finally:
            self.sources.discard(api)
            self.keepers.discard(keeper)
            api.lost.set()
            lease.cancel()
            await asyncio.wait({lease})  # what it was saying is taken back in good order
            self._count(claimed.task, outcome, time.perf_counter() - began)

    async def _end(self, work: asyncio.Task[Finished], claimed: Claimed) -> None:
        """Its slot is free when it has ended, and not before. Spark forgets an interrupt that came before its job."""
        while not work.done():
            await asyncio.to_thread(self.runner.cancel, claimed)
            await asyncio.wait({work}, timeout=AGAIN_SECONDS)

    async def _report(self, api: WorkerTaskApi, task: TaskPayload, finished: Finished, lease: asyncio.Task[str]) -> str:
        """Again and again until it is heard, or the lease is lost: then it no longer matters. How it ended."""
        while not lease.done():
            try:
                answer = await self.tasks.complete(api.token, finished.request)
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
                self._count_left_out(task, finished)
                if finished.after_commit is not None and answer.status == "Completed":
                    await asyncio.to_thread(finished.after_commit, answer.commits or {})
                return answer.status
        return "Lost"

    def _count(self, task: TaskPayload, outcome: str, seconds: float) -> None:
        self.metrics.worker_tasks.labels(task.job.dag_name, task.job.name, outcome).inc()
        self.metrics.worker_seconds.labels(task.job.dag_name, task.job.name).observe(seconds)

    def _count_left_out(self, task: TaskPayload, finished: Finished) -> None:
        for reason, count in finished.left_out.items():
            self.metrics.left_out.labels(task.job.dag_name, task.job.name, reason).inc(count)


async def retry_with_backoff(ask: Callable[[], Awaitable[T]], stop: asyncio.Event) -> T:
    """An outage is waited out, but not by a worker that is to end."""
    while True:
        try:
            return await ask()
        except Unavailable as away:
            log.warning("waits", because=away.message)
            if stop.is_set():
                raise
            await asyncio.sleep(AFTER_OUTAGE_SECONDS)


def _is_source(answer: Answer) -> bool:
    """Whether it runs until it is told to stop."""
    return isinstance(answer, Claimed) and answer.task.timeout_seconds is None


class _Slots:
    """How many more tasks may be taken in hand. Sources take none: they mostly wait, and would never give it back."""

    def __init__(self, free: int) -> None:
        self.free = free
        self._given_back = asyncio.Event()

    async def some_free(self, stop: asyncio.Event) -> int:
        """None when it is time to stop, which must also be heard while long tasks hold every slot."""
        while self.free <= 0 and not stop.is_set():
            self._given_back.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._given_back.wait(), STOP_LOOK_SECONDS)
        return 0 if stop.is_set() else min(self.free, MAX_CLAIMS)

    def take_one_for(self, task: asyncio.Task[None]) -> None:
        self.free -= 1
        task.add_done_callback(self._give_back)

    def _give_back(self, _task: asyncio.Task[None]) -> None:
        self.free += 1
        self._given_back.set()


class _Settled:
    """Wake-ups that are done with: acknowledged one call at a time, each call all that have gathered since."""

    def __init__(self, wrapper: Wrapper, stop: asyncio.Event) -> None:
        self._wrapper, self._stop = wrapper, stop
        self._turn = asyncio.Lock()
        self._waiting: list[Receipt] = []

    async def ack(self, delivery: Delivery) -> None:
        """Returns when it is acknowledged, by this call or by the one that took it along."""
        self._waiting.append(delivery.receipt)
        async with self._turn:
            if batch := self._waiting:
                self._waiting, queue = [], self._wrapper.queue
                with suppress(Unavailable):  # then we are to end: they come again, and find their tasks closed
                    await retry_with_backoff(lambda: queue.ack(self._wrapper.queue_name, batch), self._stop)


def _task_of(delivery: Delivery) -> UUID | None:
    try:
        return msgspec.json.decode(delivery.body, type=Wakeup).task_id
    except msgspec.DecodeError:
        log.exception("not a wake-up", body=delivery.body[:200].decode(errors="replace"))
        return None


def _failed(request: CompleteRequest, refusal: TraceError) -> CompleteRequest:
    """What was refused is said, so that people see it and, if that may help, the task is tried again."""
    hint = f" ({refusal.hint})" if refusal.hint else ""
    return CompleteRequest(
        task_id=request.task_id,
        attempt=request.attempt,
        lease_token=request.lease_token,
        status="Failed",
        error_message=f"the completion was refused: {refusal.message}{hint}"[:MAX_ERROR_CHARS],
        retryable=isinstance(refusal, Conflict) and not isinstance(refusal, Incompatible),
    )
