"""Events through every process at once, on each profile: workers, loops and listeners run as they please.

`test_one_event.py` shows what happens to one, step by step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import httpx
import msgspec
import pytest

from tests.support.identity.signers import kms_settings
from tests.support.queues import sqs_settings
from tests.support.systems.on_s3 import on_s3
from tests.support.systems.walk import Walk, walking, working
from tests.support.verbs import trigger
from tests.support.waiting import SECONDS, until
from tracelake.operators.api.outcome import Outcome
from tracelake.ports import Outgoing
from tracelake.wire.task.lifecycle import TaskPayload
from tracelake.worker.run_task import run_pure

pytestmark = pytest.mark.anyio

STORED = """
SELECT d.producer_job_name AS job, e.scope
  FROM events e
  JOIN datasets d ON d.id = e.dataset_uuid
 ORDER BY e.created_at
"""
UNROUTED = "SELECT count(*) FROM events WHERE routed_at IS NULL"
UNFINISHED = "SELECT count(*) FROM outbox WHERE status <> 'Done'"
ATTEMPTS = "SELECT worker_id, outcome::text FROM task_attempts"


@pytest.fixture
async def walk(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Walk]:
    async with walking(state_db, queue_db, tmp_path) as made:
        yield made


@pytest.fixture(params=["lite", "aws"])
async def walk_on_any_profile(
    request: pytest.FixtureRequest, state_db: str, queue_db: str, tmp_path: Path
) -> AsyncIterator[Walk]:
    """On Postgres' queue, a disk and keys in files; and on SQS, S3 with credentials by STS, and KMS."""
    if request.param == "lite":
        async with walking(state_db, queue_db, tmp_path) as made:
            yield made
        return
    moto, store = request.getfixturevalue("moto"), on_s3(request.getfixturevalue("seaweedfs"), tmp_path)
    async with walking(state_db, sqs_settings(moto), tmp_path, tokens=kms_settings(moto), **store) as made:
        yield made


async def test_an_event_goes_through_every_process_once(walk_on_any_profile: Walk) -> None:
    """The numbers are the steps of docs/concepts/one_event.md."""
    walk = walk_on_any_profile
    async with working(walk.worker("one")), working(walk.worker("two")):
        request = uuid4()
        for _ in range(3):  # requested three times, triggered once
            await trigger(walk.control, walk.org.id, "walk", "ask", start=0, end=99, request_id=request)
        await walk.until("work", ["Completed"])
        await walk.until("after", ["Completed"])
        await walk.until_outbox_is_empty()
    # 1 and 2: three calls stored one event; 9: each completion stored one more.
    stored = [tuple(row) for row in await walk.control.pool.fetch(STORED)]
    assert stored == [(job, "partition:0-99") for job in ("ask", "work", "after")]
    # 3 and 4: every outbox entry is done, and every event is routed.
    assert await walk.control.pool.fetchval(UNFINISHED) == 0
    assert await walk.control.pool.fetchval(UNROUTED) == 0
    # 5 and 6: no wake-up is left on the queue.
    assert (await walk.control.queue.depth("tasks-ecs_platform")).in_flight == 0
    # 7 and 8: one worker claimed and ran `work`, once; the Dispatcher ran `after` itself.
    attempts = await walk.control.pool.fetch(ATTEMPTS)
    assert [row["outcome"] for row in attempts] == ["Completed", "Completed"]
    assert len([row for row in attempts if row["worker_id"] in {"one", "two"}]) == 1


async def test_many_events_and_two_workers_make_each_task_run_once(walk_on_any_profile: Walk) -> None:
    walk = walk_on_any_profile
    ran: list[str] = []
    lock = threading.Lock()

    def noted(task: TaskPayload) -> Outcome:
        with lock:
            ran.append(str(task.scope.cursor))
        return run_pure(task)

    async with working(walk.worker("one", noted)), working(walk.worker("two", noted)):
        for cursor in range(30):
            await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=uuid4())
        await walk.until("after", ["Completed"] * 30)
    assert sorted(ran, key=int) == [str(cursor) for cursor in range(30)]


async def test_wake_ups_that_are_delivered_by_the_dozen_run_each_task_once(walk_on_any_profile: Walk) -> None:
    """As a queue of SQS may: each of them can be a message that was delivered before."""
    walk = walk_on_any_profile
    for cursor in range(3):
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=uuid4())
    await walk.until("work", ["Queued"] * 3)
    await walk.until_outbox_is_empty()
    tasks = await walk.control.pool.fetch("SELECT id FROM tasks WHERE status = 'Queued'")
    again = [Outgoing(msgspec.json.encode({"task_id": task["id"]})) for task in tasks for _ in range(12)]
    await walk.control.queue.publish("tasks-ecs_platform", again)
    async with working(walk.worker("one")), working(walk.worker("two")):
        await walk.until("after", ["Completed"] * 3)
        await until(lambda: _nothing_waits(walk), "every message was taken off the queue")
    attempts = await walk.control.pool.fetchval("SELECT count(*) FROM task_attempts WHERE worker_id IN ('one', 'two')")
    assert attempts == 3


async def _nothing_waits(walk: Walk) -> bool:
    depth = await walk.control.queue.depth("tasks-ecs_platform")
    return depth.ready == depth.in_flight == 0


async def test_an_operator_that_fails_is_a_failed_task_with_its_message_and_the_worker_goes_on(walk: Walk) -> None:
    def breaks(task: TaskPayload) -> Outcome:
        if task.scope.cursor == 0:
            raise RuntimeError("the disk is made of cheese")
        return run_pure(task)

    async with working(walk.worker("one", breaks)):
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=0, request_id=uuid4())
        await walk.until("work", ["Failed"])
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await walk.until("work", ["Failed", "Completed"])
    error = await walk.control.pool.fetchval("SELECT error_message FROM tasks WHERE status = 'Failed'")
    assert "the disk is made of cheese" in error


async def test_a_worker_that_lost_its_lease_reports_nothing_and_the_retry_counts(walk: Walk) -> None:
    held, go = threading.Event(), threading.Event()

    def slow(task: TaskPayload) -> Outcome:
        held.set()
        go.wait(SECONDS)
        return run_pure(task)

    # One slot only: it must not take the second attempt as well.
    async with working(replace(walk.worker("slow", slow), concurrency=1)):
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=7, request_id=uuid4())
        await asyncio.to_thread(held.wait, 60)
        pool = walk.control.pool
        await pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
        walk.control.after_commit.leases.notify()  # before the next heartbeat of the worker
        await walk.until("work", ["Failed"])
        await pool.execute("UPDATE tasks SET next_retry_at = now() WHERE status = 'Failed'")
        async with working(walk.worker("quick")):
            await walk.until("work", ["Completed"])
            go.set()
        await walk.until("after", ["Completed"])
    rows = await pool.fetch(
        "SELECT attempt, worker_id, outcome::text FROM task_attempts WHERE worker_id <> '' ORDER BY 1, 3"
    )
    assert [
        (row["attempt"], row["worker_id"], row["outcome"]) for row in rows if row["worker_id"] in {"slow", "quick"}
    ] == [
        (1, "slow", "LeaseExpired"),
        (2, "quick", "Completed"),
    ]
    assert await pool.fetchval("SELECT count(*) FROM events WHERE scope = 'cursor:7'") == 3


class DropsAnswers(httpx.AsyncBaseTransport):
    """A line on which the first answers to claims are lost, after the Dispatcher has given them."""

    def __init__(self, line: httpx.AsyncBaseTransport, lost: int = 2) -> None:
        self.line, self.lost = line, lost

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self.line.handle_async_request(request)
        if "task-claim" in request.url.path and self.lost:
            self.lost -= 1
            await answer.aread()
            raise httpx.ReadError("the line is cut")
        return answer

    async def aclose(self) -> None:
        await self.line.aclose()


async def test_a_lost_answer_to_a_claim_costs_no_lease(state_db: str, queue_db: str, tmp_path: Path) -> None:
    """The lease outlasts the test's time limit: a wait for its end fails."""
    dropping: list[DropsAnswers] = []

    def line(as_it_is: httpx.AsyncBaseTransport) -> httpx.AsyncBaseTransport:
        dropping.append(DropsAnswers(as_it_is))
        return dropping[0]

    async with walking(state_db, queue_db, tmp_path, line=line) as walk, working(walk.worker("w")):
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await walk.until("after", ["Completed"])
        attempts = (
            "SELECT a.attempt FROM task_attempts a JOIN tasks t ON t.id = a.task_id JOIN jobs j ON j.id = t.job_id"
        )
        rows = await walk.control.pool.fetch(f"{attempts} WHERE j.name = 'work'")
    assert [row["attempt"] for row in rows] == [1]
    assert dropping[0].lost == 0
