"""A worker and its wake-ups: it waits for them at the queue, and keeps those of its running tasks."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

from tests.support.dispatcher.control import PULL, deployed_and_active
from tests.support.operators import registered
from tests.support.systems.walk import DAG, Holds, Walk, held_worker, until_set, walking, working
from tests.support.verbs import trigger
from tests.support.waiting import SECONDS, until
from tracelake.operators.api.outcome import Outcome
from tracelake.ports import Delivery, Outgoing, Queue, Receipt
from tracelake.runtime import receive_messages
from tracelake.wire.client import DispatcherClient
from tracelake.wire.task.lifecycle import TaskPayload
from tracelake.worker.run_task import run_pure

pytestmark = pytest.mark.anyio

QUEUE = "tasks-ecs_platform"
OFTEN = DAG.replace("inputs: [{from: {job: ask}}]", "inputs: [{from: {job: ask}}], heartbeat_interval_seconds: 1")
SOURCE = """
name: feed
defaults: {runtime: ecs_platform}
jobs:
  - {name: follow, operator: pull, source: {kind: always_on}}
"""
HELD_FOR = "SELECT extract(epoch FROM visible_at - now())::float, receives FROM pgqueue.messages WHERE queue = %s"
RUNS_OUT = "UPDATE pgqueue.messages SET visible_at = now() + interval '30 seconds' WHERE queue = %s"


@pytest.fixture
async def walk(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Walk]:
    with registered(pull=PULL):
        async with walking(state_db, queue_db, tmp_path) as made:
            yield made


@dataclass(frozen=True)
class Watched:
    """The queue as it is, the waits of a worker's calls, and how many wake-ups it was given each time."""

    inner: Queue
    waits: list[timedelta] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    held: Counter[Receipt] = field(default_factory=Counter)
    """Those that were given and are not acknowledged."""
    most: list[int] = field(default_factory=list)
    """How many were held after each call."""

    async def receive(
        self, queue: str | Mapping[str, int], *, wait: timedelta = timedelta(), **options: Any
    ) -> list[Delivery]:
        self.waits.append(wait)
        found = list(await self.inner.receive(queue, wait=wait, **options))
        self.given.append(len(found))
        self.held.update(delivery.receipt for delivery in found)
        self.most.append(self.held.total())
        return found

    async def ack(self, queue: str, receipts: Sequence[Receipt]) -> set[Receipt]:
        gone = await self.inner.ack(queue, receipts)
        self.held.subtract(receipts)
        return gone

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


@dataclass(frozen=True)
class FirstClaimWaits:
    """The Dispatcher as it is, but that the first call to claim is sent only when it may be."""

    inner: DispatcherClient
    may_go: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[int] = field(default_factory=list)
    """How many tasks, in each call."""

    async def claim_batch(self, tasks: Sequence[UUID], *more: Any) -> Any:
        self.asked.append(len(tasks))
        if len(self.asked) == 1:
            await self.may_go.wait()
        return await self.inner.claim_batch(tasks, *more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def test_a_task_runs_while_the_claims_before_it_are_not_answered(walk: Walk) -> None:
    claims = FirstClaimWaits(walk.dispatcher)
    async with working(replace(walk.worker("one"), dispatcher=cast("DispatcherClient", claims))):
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await until(lambda: claims.asked, "the first task is claimed, which is not answered")
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=2, request_id=uuid4())
        await walk.until("work", ["Queued", "Completed"])
        claims.may_go.set()
        await walk.until("work", ["Completed"] * 2)
    assert claims.asked == [1, 1]


async def test_a_task_that_is_being_claimed_has_a_slot(walk: Walk) -> None:
    claims, queue = FirstClaimWaits(walk.dispatcher), Watched(walk.control.queue)
    worker = replace(walk.worker("one"), dispatcher=cast("DispatcherClient", claims), queue=queue, concurrency=2)
    async with working(worker):
        for cursor in range(10):
            await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=uuid4())
            await until(lambda: claims.asked, "the first task is claimed, which is not answered")
        await until(lambda: sum(queue.given) == 10, "the others use the other slot")
        claims.may_go.set()
        await walk.until("work", ["Completed"] * 10)
    assert max(queue.most) <= 2


async def test_what_is_not_given_frees_its_slot(walk: Walk) -> None:
    """Messages that name no task, and a task that does not exist: as many as would fill every slot."""
    worker = replace(walk.worker("one"), concurrency=1)
    unknown = msgspec.json.encode({"task_id": uuid4()})
    async with working(worker):
        for body in (b"no wake-up", unknown, b"{}"):
            await walk.control.queue.publish(QUEUE, [Outgoing(body)])
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await walk.until("work", ["Completed"])


async def test_a_source_that_is_claimed_while_its_worker_stops_is_asked_to_stop(walk: Walk) -> None:
    """Its claim is answered only after that: else the worker would run for as long as the source."""
    claims, holds, stop = FirstClaimWaits(walk.dispatcher), Holds(), asyncio.Event()
    worker = replace(held_worker(walk, holds), dispatcher=cast("DispatcherClient", claims))
    await deployed_and_active(walk.control, walk.org, SOURCE)
    working_on = asyncio.create_task(worker.work(stop))
    await until(lambda: claims.asked, "the source is claimed, which is not answered")
    stop.set()
    claims.may_go.set()
    await until(holds.begun.is_set, "the source has begun")
    await until_set(holds.stop_requested, holds)
    holds.let_go.set()
    await working_on


@contextmanager
def queue_statements(queue_db: str) -> Iterator[Any]:
    with psycopg.connect(queue_db, autocommit=True) as connection:

        def look(statement: str) -> list[Any]:
            cursor = connection.execute(statement.encode(), (QUEUE,))
            return cursor.fetchall() if cursor.description else []

        yield look
