"""Step 6 of one event: a wake-up is received, and its task claimed, run under a lease, and completed.

Many tasks at once, up to `concurrency`. Whatever is away (Dispatcher, queue) is waited for. A wake-up is acknowledged
only when its task is closed or is nobody's to run; so a worker that dies loses nothing: the lease runs out, the task is
queued again, and this wake-up finds it not to be claimed.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import structlog

from trace_platform.client import DispatcherClient, TaskClient
from trace_platform.contracts import Claimed, CompleteRequest, TaskPayload, Wakeup
from trace_platform.errors import BadInput, LeaseLost, Refused, Unavailable
from trace_platform.operators.outcome import Outcome
from trace_platform.ports import Delivery, Queue
from trace_platform.worker.lease_keeper import VISIBILITY, LeaseKeeper

log = structlog.get_logger()

WAIT = timedelta(seconds=20)
AFTER_OUTAGE_SECONDS = 1.0
MAX_ERROR_CHARS = 10_000

T = TypeVar("T")

Run = Callable[[TaskPayload], Outcome]
"""What runs a task, in a thread of its own: the registry of operators."""


@dataclass(frozen=True)
class Wrapper:
    queue: Queue
    queue_name: str
    dispatcher: DispatcherClient
    tasks: TaskClient
    run: Run
    worker_id: str
    concurrency: int

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
            with structlog.contextvars.bound_contextvars(task=str(wake_up.task_id)):
                await self._follow(wake_up, delivery)
        except Exception:
            log.exception("wake-up failed", body=delivery.body[:200].decode(errors="replace"))

    async def _follow(self, wake_up: Wakeup, delivery: Delivery) -> None:
        claimed = await self._patiently(lambda: self.dispatcher.claim(wake_up.task_id, self.worker_id))
        if isinstance(claimed, Claimed):
            await self._run_claimed(claimed, delivery)
        await self._patiently(lambda: self.queue.ack(self.queue_name, [delivery.receipt]))

    async def _run_claimed(self, claimed: Claimed, delivery: Delivery) -> None:
        keeper = LeaseKeeper(claimed, self.tasks, self.queue, delivery, self.queue_name)
        lease = asyncio.create_task(keeper.run())
        work = asyncio.create_task(asyncio.to_thread(_outcome, self.run, claimed))
        try:
            await asyncio.wait({lease, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                log.warning("lease lost", because=lease.result())
                return
            await self._report(keeper, work.result(), lease)
        finally:
            lease.cancel()
            work.cancel()

    async def _report(self, keeper: LeaseKeeper, request: CompleteRequest, lease: asyncio.Task[str]) -> None:
        """Again and again until it is heard, or the lease is lost: then it no longer matters."""
        while not lease.done():
            try:
                answer = await self.tasks.complete(keeper.token, request)
            except Unavailable as away:
                log.warning("completion not heard", because=away.message)
                await asyncio.sleep(AFTER_OUTAGE_SECONDS)
            except (LeaseLost, Refused, BadInput) as refusal:
                log.warning("completion refused", **refusal.as_dict())
                return
            else:
                log.info("completed", status=answer.status)
                return

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await ask()
            except Unavailable as away:
                log.warning("waits", because=away.message)
                await asyncio.sleep(AFTER_OUTAGE_SECONDS)


def _outcome(run: Run, claimed: Claimed) -> CompleteRequest:
    """The operator's outcome as a completion; an error of its own is a failure of the task, never of the worker."""
    fence: dict[str, Any] = {
        "task_id": claimed.task.task_id,
        "attempt": claimed.attempt,
        "lease_token": claimed.lease_token,
    }
    try:
        outcome = run(claimed.task)
    except BadInput as wrong:
        return CompleteRequest(**fence, status="Failed", error_message=wrong.message, retryable=False)
    except Exception:  # noqa: BLE001 - whatever an operator does, the task says it
        return CompleteRequest(**fence, status="Failed", error_message=traceback.format_exc()[-MAX_ERROR_CHARS:])
    return CompleteRequest(
        **fence,
        status="Completed",
        events=list(outcome.events),
        invalidations=list(outcome.invalidations),
        state=outcome.state,
    )
