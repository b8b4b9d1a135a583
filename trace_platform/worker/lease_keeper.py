"""Keeps a claim alive while its operator runs: lease and queue visibility, and what the Dispatcher has to say.

A lease that is lost, or a task that is canceled, ends the work at once; nothing is reported for it. An outage is waited
out: the Dispatcher may be back before the lease runs out.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import structlog

from trace_platform.client import TaskClient
from trace_platform.contracts import Claimed, HeartbeatRequest
from trace_platform.errors import LeaseLost, Unavailable
from trace_platform.ports import Delivery, Queue

log = structlog.get_logger()

VISIBILITY = timedelta(minutes=2)
"""How long a wake-up stays ours without a word; it is extended with every heartbeat."""


class LeaseKeeper:
    """`token` is always the freshest; `run` returns only when the lease is gone."""

    def __init__(self, claimed: Claimed, tasks: TaskClient, queue: Queue, wake_up: Delivery, queue_name: str) -> None:
        self.token = claimed.capability_token
        self._claimed = claimed
        self._tasks = tasks
        self._queue = queue
        self._wake_up = wake_up
        self._queue_name = queue_name

    async def run(self) -> str:
        """Why it is over."""
        while True:
            await asyncio.sleep(self._claimed.task.heartbeat_seconds)
            try:
                ended = await self._beat()
            except LeaseLost as lost:
                return lost.message
            except Unavailable as away:
                log.warning("heartbeat not heard", because=away.message)
                continue
            if ended:
                return ended

    async def _beat(self) -> str:
        request = HeartbeatRequest(
            task_id=self._claimed.task.task_id,
            attempt=self._claimed.attempt,
            lease_token=self._claimed.lease_token,
        )
        answer = await self._tasks.heartbeat(self.token, request)
        self.token = answer.capability_token or self.token
        await self._queue.extend(self._queue_name, [self._wake_up.receipt], VISIBILITY)
        return "the task was canceled" if answer.canceled else ""
