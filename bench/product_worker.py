"""The product's own worker in front of tasks that do nothing: its wrapper, clients and lease keepers, without Spark."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import structlog

from bench.noop_worker import QUEUE
from bench.rig import Rig
from tests.support.identity.service_tokens import as_service
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.operators.api.context import Resources
from tracelake.operators.api.outcome import Outcome
from tracelake.runtime.http_client import AsyncClient
from tracelake.wire.client import DispatcherClient, TaskClient
from tracelake.wire.task.lifecycle import TaskPayload
from tracelake.wire.task.outputs import CompleteAnswer, CompleteRequest
from tracelake.worker.run_task import Runner
from tracelake.worker.wrapper import Wrapper


class Counted(TaskClient):
    """Counts the completions that were accepted."""

    def __init__(self, http: AsyncClient) -> None:
        super().__init__(http)
        self.done = 0
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
        counted, stop = Counted(task), asyncio.Event()
        runner = Runner(DiskObjects(rig.objects), Resources(), pure=run)
        wrapper = Wrapper(rig.queue, QUEUE, DispatcherClient(internal), counted, runner, "bench", concurrency)
        work = asyncio.create_task(wrapper.work(stop))
        try:
            yield counted
        finally:
            stop.set()
            await work
