"""Keeps a claim alive while its operator runs: lease and queue visibility, and what the Dispatcher has to say.

A lease that is lost, or a task that is canceled, ends the work at once; nothing is reported for it. An outage is waited
out: the Dispatcher may be back before the lease runs out. News of progress is passed on soon, not at the next beat.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import structlog

from trace_platform.client import TaskClient
from trace_platform.contracts import Claimed, HeartbeatRequest
from trace_platform.crash_points import crash_point
from trace_platform.errors import LeaseLost, Unavailable
from trace_platform.ports import Delivery, Queue
from trace_platform.worker.door import Door

log = structlog.get_logger()

VISIBILITY = timedelta(minutes=2)
"""How long a wake-up stays ours without a word; it is extended with every heartbeat."""
NEWS_SECONDS = 1.0
"""How often progress is told at most."""


@dataclass(frozen=True)
class Held:
    """A wake-up in our hands."""

    queue: Queue
    name: str
    delivery: Delivery

    async def extend(self) -> None:
        await self.queue.extend(self.name, [self.delivery.receipt], VISIBILITY)


class LeaseKeeper:
    """`run` returns only when the lease is gone. The freshest token is the door's."""

    def __init__(self, claimed: Claimed, door: Door, tasks: TaskClient, wake_up: Held) -> None:
        self._claimed = claimed
        self._door = door
        self._tasks = tasks
        self._wake_up = wake_up

    async def run(self) -> str:
        """Why it is over."""
        while True:
            await self._until_due()
            try:
                ended = await self._beat()
            except LeaseLost as lost:
                ended = lost.message
            except Unavailable as away:
                log.warning("heartbeat not heard", because=away.message)
                continue
            if ended:
                self._door.lost.set()
                return ended

    async def _until_due(self) -> None:
        """The interval of the job; sooner if there is progress to tell."""
        await asyncio.sleep(NEWS_SECONDS)
        try:
            async with asyncio.timeout(max(self._claimed.task.heartbeat_seconds - NEWS_SECONDS, 0.0)):
                await self._door.progressed.wait()
        except TimeoutError:
            pass
        self._door.progressed.clear()

    async def _beat(self) -> str:
        request = HeartbeatRequest(
            task_id=self._claimed.task.task_id,
            attempt=self._claimed.attempt,
            lease_token=self._claimed.lease_token,
            progress=self._door.progress,
        )
        crash_point("lease_keeper.before_beat")
        answer = await self._tasks.heartbeat(self._door.token, request)
        crash_point("lease_keeper.renewed")
        self._door.token = answer.capability_token or self._door.token
        if answer.paused:
            self._door.asked_to_stop.set()
        await self._wake_up.extend()
        return "the task was canceled" if answer.canceled else ""
