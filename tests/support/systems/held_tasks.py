"""A worker whose tasks run for as long as the test wants."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

import httpx
import pytest

from tests.support.systems.walk import Walk
from tracelake.dispatcher.events.trigger import trigger
from tracelake.operators.api.context import TaskApi
from tracelake.wire.client import TaskClient
from tracelake.wire.output_messages import CompleteRequest
from tracelake.wire.task_messages import Claimed
from tracelake.worker.run_task import Finished
from tracelake.worker.wrapper import Wrapper


@dataclass
class Holds:
    """Runs each task until it is let go or canceled."""

    begun: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)
    canceled: threading.Event = field(default_factory=threading.Event)
    stop_requested: threading.Event = field(default_factory=threading.Event)
    ended: set[UUID] = field(default_factory=set)
    """Tasks that were canceled."""
    runs: int = 0

    def run(self, claimed: Claimed, listener: TaskApi) -> Finished:
        self.stop_requested = listener.stop_requested
        self.runs += 1
        self.begun.set()
        while not (self.let_go.wait(0.02) or claimed.task.task_id in self.ended):
            pass
        return Finished(
            CompleteRequest(
                task_id=claimed.task.task_id,
                attempt=claimed.attempt,
                lease_token=claimed.lease_token,
                status="Completed",
            )
        )

    def cancel(self, claimed: Claimed) -> None:
        self.ended.add(claimed.task.task_id)
        self.canceled.set()


async def until(happened: threading.Event, holds: Holds) -> None:
    """What does not happen ends the test, not the patience of whoever runs it."""
    if not await asyncio.to_thread(happened.wait, 30):
        holds.let_go.set()
        pytest.fail("it did not happen")


async def a_task_in_hand(walk: Walk, holds: Holds, *, interval: int = 1, lease: int = 60) -> None:
    timed = "UPDATE jobs SET heartbeat_interval_seconds = $1, heartbeat_timeout_seconds = $2"
    await walk.control.pool.execute(timed, interval, lease)
    await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
    await until(holds.begun, holds)


def holding(walk: Walk, holds: Holds, http: httpx.AsyncClient | None = None) -> Wrapper:
    return replace(walk.worker("w"), runner=holds, tasks=TaskClient(http) if http else walk.tasks)


async def the_task(walk: Walk) -> UUID:
    found: UUID = await walk.control.pool.fetchval(
        "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work'"
    )
    return found
