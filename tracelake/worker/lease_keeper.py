"""Keeps a claim alive while its operator runs: lease and queue visibility, and what the Dispatcher has to say.

A lease that is lost, or a task that is canceled, ends the work at once; nothing is reported for it. An outage is waited
out: the Dispatcher may be back before the lease runs out, and is asked again soon. News of progress is passed on soon,
not at the next beat.
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
from tracelake.wire.client import TaskClient
from tracelake.wire.task_messages import Claimed, HeartbeatRequest
from tracelake.worker.task_api import WorkerTaskApi

log = structlog.get_logger()

VISIBILITY = timedelta(minutes=2)
"""How long a wake-up stays ours without a word; it is extended with every heartbeat."""
POLL_SECONDS = 1.0
"""How often progress is told at most, and how long the queue may take to hear of a beat."""
AFTER_OUTAGE_SECONDS = 1.0
MOST_SECONDS = 30.0
"""Between two beats, however long the lease: the wake-up is kept by it."""


@dataclass(frozen=True)
class Held:
    """A wake-up in our hands."""

    queue: Queue
    name: str
    delivery: Delivery

    async def extend(self) -> None:
        await self.queue.extend(self.name, [self.delivery.receipt], VISIBILITY)


async def _within(seconds: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class LeaseKeeper:
    """`run` returns only when the lease is gone. The freshest token is the door's."""

    def __init__(self, claimed: Claimed, api: WorkerTaskApi, tasks: TaskClient, wake_up: Held) -> None:
        self._claimed = claimed
        self._api = api
        self._tasks = tasks
        self._wake_up = wake_up
        self._wanted = asyncio.Event()

    def beat_now(self) -> None:
        """Tasks were ended, perhaps this one: its next beat tells."""
        self._wanted.set()
        self._api.progressed.set()

    async def run(self) -> str:
        """Why it is over."""
        pause = self._interval
        while True:
            await self._until_due(pause)
            try:
                ended = await self._beat()
            except Unavailable as away:
                log.warning("heartbeat not heard", because=away.message)
                pause = AFTER_OUTAGE_SECONDS
                continue
            except TraceError as refusal:  # what is refused now is refused again: the lease cannot be kept
                ended = refusal.message
            except Exception as wrong:
                log.exception("the lease cannot be kept")
                ended = repr(wrong)
            if ended:
                self._api.lost.set()
                return ended
            pause = self._interval
            await self._hold()

    @property
    def _interval(self) -> float:
        return min(self._claimed.task.heartbeat_seconds, MOST_SECONDS)

    async def _until_due(self, seconds: float) -> None:
        """The interval of the job; sooner if there is progress to tell, at once if tasks were ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _within(POLL_SECONDS, self._wanted)
                await self._api.progressed.wait()
        self._wanted.clear()
        self._api.progressed.clear()

    async def _hold(self) -> None:
        """The wake-up stays ours. If that fails it may come to another worker, which finds the task taken."""
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
