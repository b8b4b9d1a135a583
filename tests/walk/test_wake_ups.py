"""A worker and its wake-ups: it waits for them at the queue, and keeps those of its running tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.support.dispatcher.control import deployed_and_active
from tests.support.systems.walk import DAG, Walk, walking, working
from tests.support.verbs import trigger
from tests.support.waiting import SECONDS, until
from tracelake.operators.api.outcome import Outcome
from tracelake.ports import Delivery, Queue
from tracelake.runtime import receive_messages
from tracelake.wire.task.lifecycle import TaskPayload
from tracelake.worker.run_task import run_pure

pytestmark = pytest.mark.anyio

QUEUE = "tasks-ecs_platform"
OFTEN = DAG.replace("inputs: [{from: {job: ask}}]", "inputs: [{from: {job: ask}}], heartbeat_interval_seconds: 1")
HELD_FOR = "SELECT extract(epoch FROM visible_at - now())::float, receives FROM pgqueue.messages WHERE queue = %s"
RUNS_OUT = "UPDATE pgqueue.messages SET visible_at = now() + interval '30 seconds' WHERE queue = %s"


@pytest.fixture
async def walk(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Walk]:
    async with walking(state_db, queue_db, tmp_path) as made:
        yield made


@dataclass(frozen=True)
class Watched:
    """The queue as it is, the waits of a worker's calls, and how many wake-ups it was given each time."""

    inner: Queue
    waits: list[timedelta] = field(default_factory=list)
    given: list[int] = field(default_factory=list)

    async def receive(
        self, queue: str | Mapping[str, int], *, wait: timedelta = timedelta(), **options: Any
    ) -> list[Delivery]:
        self.waits.append(wait)
        found = list(await self.inner.receive(queue, wait=wait, **options))
        self.given.append(len(found))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def test_an_idle_worker_waits_in_one_call_and_is_woken_by_what_comes(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert timedelta(seconds=10) <= receive_messages.WAIT
    monkeypatch.setattr(receive_messages, "WAIT", timedelta(hours=1))  # so that only a wake-up can end it
    queue = Watched(walk.control.queue)
    async with working(replace(walk.worker("one"), queue=queue)):
        await until(lambda: queue.waits, "the worker waits for wake-ups")
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await walk.until("work", ["Completed"])
    assert queue.waits[0] == timedelta(hours=1)
    assert queue.given[0] == 1, "its first call was answered with what came"


async def test_a_wake_up_stays_with_the_worker_for_as_long_as_its_task_runs(walk: Walk, queue_db: str) -> None:
    runs, go = threading.Event(), threading.Event()

    def slowly(task: TaskPayload) -> Outcome:
        runs.set()
        go.wait(SECONDS)
        return run_pure(task)

    await deployed_and_active(walk.control, walk.org, OFTEN)
    with queue_statements(queue_db) as look:
        async with working(walk.worker("one", slowly)):
            await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
            await asyncio.to_thread(runs.wait, 60)
            look(RUNS_OUT)
            await until(lambda: look(HELD_FOR)[0][0] > 60, "the wake-up is held for longer")
            ((_, receives),) = look(HELD_FOR)
            assert receives == 1, "before it ran out"
            go.set()
            await walk.until("work", ["Completed"])
        assert look(HELD_FOR) == [], "and it is acknowledged when the task is done"


@contextmanager
def queue_statements(queue_db: str) -> Iterator[Any]:
    with psycopg.connect(queue_db, autocommit=True) as connection:

        def look(statement: str) -> list[Any]:
            cursor = connection.execute(statement.encode(), (QUEUE,))
            return cursor.fetchall() if cursor.description else []

        yield look
