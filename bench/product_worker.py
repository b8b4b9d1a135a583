"""The product's own worker in front of tasks that do nothing: its wrapper, clients and lease keepers, without Spark."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import structlog

from bench.noop_worker import QUEUE
from bench.rig import Rig
from tests.support.identity.service_tokens import as_service
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.operators.api.context import Resources
from tracelake.operators.api.outcome import Outcome
from tracelake.ports import Delivery
from tracelake.runtime.http_client import AsyncClient
from tracelake.wire.client import DispatcherClient, TaskClient
from tracelake.wire.task.lifecycle import TaskPayload, Wakeup
from tracelake.wire.task.outputs import CompleteAnswer, CompleteRequest
from tracelake.worker.run_task import Runner
from tracelake.worker.wrapper import Wrapper


class TimedQueue:
    """The queue as the worker sees it; it remembers when wake-ups were published and received."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.received: dict[UUID, tuple[float, float]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def receive(self, *queues: Any, **how: Any) -> list[Delivery]:
        deliveries: list[Delivery] = await self._queue.receive(*queues, **how)
        now = time.time()
        for delivery in deliveries:
            task = msgspec.json.decode(delivery.body, type=Wakeup).task_id
            self.received[task] = delivery.sent_at.timestamp(), now
        return deliveries


class Counted(TaskClient):
    """Counts the completions that were accepted."""

    def __init__(self, http: AsyncClient, queue: TimedQueue) -> None:
        super().__init__(http)
        self.done = 0
        self.queue = queue
        self._progress = asyncio.Event()

    async def complete(self, token: str, request: CompleteRequest) -> CompleteAnswer:
        answer = await super().complete(token, request)
        self.done += 1
        self._progress.set()
        return answer

    async def wait_for(self, done: int, seconds: float = 300) -> None:
        async with asyncio.timeout(seconds):
            while self.done < done:
                await self._progress.wait()
                self._progress.clear()


@asynccontextmanager
async def product_working(
    rig: Rig, concurrency: int, run: Callable[[TaskPayload], Outcome] = lambda _: Outcome()
) -> AsyncIterator[Counted]:
    """`run` is what each task does, in a thread of its own."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    more: dict[str, Any] = {"verify": rig.tls, "timeout": 30}
    async with (
        AsyncClient(base_url=rig.internal_api, headers=as_service("worker"), **more) as internal,
        AsyncClient(base_url=rig.task_api, **more) as task,
    ):
        counted, stop = Counted(task, TimedQueue(rig.queue)), asyncio.Event()
        runner = Runner(DiskObjects(rig.objects), Resources(), pure=run)
        wrapper = Wrapper(counted.queue, QUEUE, DispatcherClient(internal), counted, runner, "bench", concurrency)
        work = asyncio.create_task(wrapper.work(stop))
        try:
            yield counted
        finally:
            stop.set()
            await work
