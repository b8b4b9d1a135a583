"""Keeps a claim alive while its operator runs: heartbeats for the lease, and the visibility of the wake-up.

A lease that is lost, or a task that is canceled, ends the work at once; nothing is reported for it. An outage is waited
out: the Dispatcher may be back before the lease expires. Progress is sent soon, not only when a heartbeat is due.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from tracelake.errors import TraceError, Unavailable
from tracelake.ports import Delivery, Queue
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.retry import delays, sleep_unless
from tracelake.wire.client import TaskClient
from tracelake.wire.task.lifecycle import Claimed, HeartbeatRequest
from tracelake.worker.task_api import WorkerTaskApi

log = structlog.get_logger()

VISIBILITY = timedelta(minutes=2)
"""How long a wake-up is held without an extension; every heartbeat extends it."""
POLL_SECONDS = 1.0
"""How often progress is sent at most, and how long the queue may take to extend a wake-up."""
MOST_SECONDS = 30.0
"""Between two heartbeats, however long the lease: they extend the wake-up."""


@dataclass(frozen=True)
class HeldWakeup:
    """A wake-up that this worker holds."""

    queue: Queue
    delivery: Delivery

    async def extend(self) -> None:
        await self.queue.extend(self.delivery.queue, [self.delivery.receipt], VISIBILITY)


class LeaseKeeper:
    """`run` returns only when the lease is lost. The newest token is in `api.token`."""

    def __init__(self, claimed: Claimed, api: WorkerTaskApi, tasks: TaskClient, wake_up: HeldWakeup | None) -> None:
        """`wake_up`: None where no queue brought the task."""
        self._claimed = claimed
        self._api = api
        self._tasks = tasks
        self._wake_up = wake_up
        self._wanted = asyncio.Event()

    def beat_now(self) -> None:
        """Sends a heartbeat at once: tasks were ended, perhaps this one."""
        self._wanted.set()
        self._api.progressed.set()

    async def run(self) -> str:
        """Until the lease is lost; returns why."""
        pause, pauses = self._interval, delays()
        while True:
            await self._until_due(pause)
            try:
                ended = await self._beat()
            except Unavailable as away:
                log.warning("heartbeat not answered", because=away.message)
                pause = next(pauses)
                continue
            except TraceError as refusal:  # what is refused now is refused again: the lease cannot be kept
                ended = refusal.message
            except Exception as wrong:
                log.exception("the lease cannot be kept")
                ended = repr(wrong)
            if ended:
                self._api.lost.set()
                return ended
            pause, pauses = self._interval, delays()
            await self._hold()

    @property
    def _interval(self) -> float:
        return min(self._claimed.task.heartbeat_seconds, MOST_SECONDS)

    async def _until_due(self, seconds: float) -> None:
        """The interval of the job; sooner if there is progress to send, at once if tasks were ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await sleep_unless(self._wanted, POLL_SECONDS)
                await self._api.progressed.wait()
        self._wanted.clear()
        self._api.progressed.clear()

    async def _hold(self) -> None:
        """Extends the wake-up. If that fails another worker may receive it, which finds the task running."""
        if self._wake_up is None:
            return
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._wake_up.extend()
        except Exception as wrong:  # noqa: BLE001 - whatever the queue has, the lease is what counts
            log.warning("the wake-up was not held", because=str(wrong) or type(wrong).__name__)

    async def _beat(self) -> str:
        request = HeartbeatRequest(
            task_id=self._claimed.task.task_id,
            attempt=self._claimed.attempt,
            lease_token=self._claimed.lease_token,
            progress=self._api.progress,
        )
        crash_point("lease_keeper.before_beat")
        answer = await self._tasks.heartbeat(self._api.token, request)
        crash_point("lease_keeper.renewed")
        self._api.token = answer.capability_token or self._api.token
        if answer.paused:
            self._api.stop_requested.set()
        return "the task was canceled" if answer.canceled else ""
