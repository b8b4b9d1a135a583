"""Runs a claimed task under its lease, and reports its end.

In a worker, many at once; in a job run, the only one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from tracelake.capability.log_context import task_fields
from tracelake.errors import BadInput, Conflict, Incompatible, LeaseLost, Refused, TraceError, Unavailable
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.retry import retry_with_backoff
from tracelake.wire.client import TaskClient
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.task.outputs import CompleteAnswer, CompleteRequest
from tracelake.worker.lease_keeper import HeldWakeup, LeaseKeeper
from tracelake.worker.run_task import MAX_ERROR_CHARS, Finished, RunsTasks
from tracelake.worker.task_api import WorkerTaskApi

log = structlog.get_logger()

AGAIN_SECONDS: Final = 0.5
"""How often a task whose lease is lost is asked to end."""

T = TypeVar("T")


@dataclass(frozen=True)
class ClaimedTasks:
    tasks: TaskClient
    runner: RunsTasks
    metrics: Metrics = field(default_factory=Metrics)
    sources: set[WorkerTaskApi] = field(default_factory=set)
    """Of the always-on sources in progress."""
    keepers: set[LeaseKeeper] = field(default_factory=set)
    """Of all tasks in progress."""

    async def run(self, claimed: Claimed, threads: Executor, wake_up: HeldWakeup | None = None) -> None:
        """`wake_up`: what is held while it runs, where a queue brought the task."""
        api = WorkerTaskApi(claimed, self.tasks)
        keeper = LeaseKeeper(claimed, api, self.tasks, wake_up)
        lease = asyncio.create_task(keeper.run())
        work = _in_thread(threads, partial(self.runner.run, claimed, api))
        if is_source(claimed):
            self.sources.add(api)
        self.keepers.add(keeper)
        log.info("runs", operator=claimed.task.operator)
        outcome, began = "Lost", time.perf_counter()
        try:
            either: set[asyncio.Future[Any]] = {lease, work}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                log.warning("lease lost", because=lease.result())
                api.lost.set()
                await self._end(work, claimed, threads)
                return
            crash_point("wrapper.operator_done")
            outcome = await self._report(api, claimed, work.result(), lease)
        finally:
            self.sources.discard(api)
            self.keepers.discard(keeper)
            api.lost.set()
            lease.cancel()
            await asyncio.wait({lease})
            self._count(claimed, outcome, time.perf_counter() - began)

    async def _end(self, work: asyncio.Future[Finished], claimed: Claimed, threads: Executor) -> None:
        """Its slot is freed only when it has ended. Spark ignores an interrupt that came before its job."""
        while not work.done():
            await _in_thread(threads, partial(self.runner.cancel, claimed))
            await asyncio.wait({work}, timeout=AGAIN_SECONDS)

    async def _report(self, api: WorkerTaskApi, claimed: Claimed, finished: Finished, lease: asyncio.Task[str]) -> str:
        """Retries until it is answered, or the lease is lost: then it no longer matters. Returns how it ended."""
        while not lease.done():
            try:
                answer = await self._complete(api, finished.request, lease)
            except Unavailable:
                break
            except (LeaseLost, Refused, BadInput) as refusal:
                log.warning("completion refused", **refusal.as_dict())
                if isinstance(refusal, LeaseLost) or finished.request.status == "Failed":
                    return "Refused"
                finished = Finished(_failed(finished.request, refusal))
            else:
                crash_point("wrapper.completed")
                log.info("completed", status=answer.status)
                self._count_left_out(claimed, finished)
                if finished.after_commit is not None and answer.status == "Completed":
                    await asyncio.to_thread(finished.after_commit, answer.commits or {})
                return answer.status
        return "Lost"

    async def _complete(self, api: WorkerTaskApi, request: CompleteRequest, lease: asyncio.Task[str]) -> CompleteAnswer:
        return await retry_with_backoff(lambda: self.tasks.complete(api.token, request), is_over=lease.done)

    def _count(self, claimed: Claimed, outcome: str, seconds: float) -> None:
        subject = task_fields(claimed)
        self.metrics.worker_tasks.labels(subject["org"], subject["dag"], subject["job"], outcome).inc()
        self.metrics.worker_seconds.labels(subject["org"], subject["dag"], subject["job"]).observe(seconds)

    def _count_left_out(self, claimed: Claimed, finished: Finished) -> None:
        subject = task_fields(claimed)
        for reason, count in finished.left_out.items():
            self.metrics.left_out.labels(subject["org"], subject["dag"], subject["job"], reason).inc(count)


def _in_thread(threads: Executor, call: Callable[[], T]) -> asyncio.Future[T]:
    """As `asyncio.to_thread`, whose pool has a number of threads that follows from the cores: fewer than slots."""
    return asyncio.get_running_loop().run_in_executor(threads, partial(copy_context().run, call))


def is_source(answer: object) -> bool:
    """Whether it runs until it is asked to stop."""
    return isinstance(answer, Claimed) and answer.task.timeout_seconds is None


def _failed(request: CompleteRequest, refusal: TraceError) -> CompleteRequest:
    """Reports the refusal, so that people see it and, if that may help, the task is retried."""
    hint = f" ({refusal.hint})" if refusal.hint else ""
    return CompleteRequest(
        task_id=request.task_id,
        attempt=request.attempt,
        lease_token=request.lease_token,
        status="Failed",
        error_message=f"the completion was refused: {refusal.message}{hint}"[:MAX_ERROR_CHARS],
        retryable=isinstance(refusal, Conflict) and not isinstance(refusal, Incompatible),
        requests=request.requests,
    )
