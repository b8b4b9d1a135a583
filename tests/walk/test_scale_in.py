"""Workers that come and go while tasks run: no lease is lost to it. And what decides how many there are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.systems.walk import Walk, walking, working
from tests.support.verbs import trigger
from tests.support.waiting import until
from tracelake.operators.api.outcome import Outcome
from tracelake.wire.task.lifecycle import TaskPayload

pytestmark = pytest.mark.anyio

ENDED = """
SELECT count(*) = $1 FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work' AND t.status = 'Completed'
"""
TAKEN_BY = "SELECT count(*) FROM task_attempts WHERE worker_id = $1"


@pytest.fixture
async def walk(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Walk]:
    async with walking(state_db, queue_db, tmp_path) as made:
        yield made


def short_work(task: TaskPayload) -> Outcome:
    del task
    time.sleep(0.02)
    return Outcome()


async def test_no_attempt_is_lost_when_workers_are_stopped_under_load(
    walk: Walk, request: pytest.FixtureRequest
) -> None:
    """Each worker is to stop while it has tasks, and another starts."""
    sent = 0
    async with working(walk.worker("stays", short_work)):
        for number in range(request.config.getoption("--scale-ins")):
            name = f"goes {number}"
            async with working(walk.worker(name, short_work)):
                while not await walk.control.pool.fetchval(TAKEN_BY, name):
                    sent += 1
                    await trigger(walk.control, walk.org.id, "walk", "ask", cursor=sent, request_id=uuid4())
        await until(lambda: walk.control.pool.fetchval(ENDED, sent), "every task is completed")
    attempts = "SELECT count(*) FILTER (WHERE a.attempt > 1 OR a.outcome <> 'Completed') FROM task_attempts a"
    assert await walk.control.pool.fetchval(attempts) == 0
    assert await walk.control.pool.fetchval("SELECT count(*) FROM task_attempts") >= sent


async def test_the_load_of_a_runtime_says_what_workers_are_needed_for(walk: Walk) -> None:
    before = await walk.dispatcher.worker_load("ecs_platform")
    assert (before.queued, before.leased, before.sources, before.next_retry_seconds) == (0, 0, 0, None)
    assert before.keep_warm_seconds is None, "`never` is the default"
    for cursor in range(3):
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=uuid4())
    await walk.until("work", ["Queued"] * 3)
    assert (await walk.dispatcher.worker_load("ecs_platform")).queued == 3
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(task: TaskPayload) -> Outcome:
        del task
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        return Outcome()

    async with working(walk.worker("works", wait)):
        await walk.until("work", ["Running"] * 3)
        during = await walk.dispatcher.worker_load("ecs_platform")
        gate.set()
        await walk.until("work", ["Completed"] * 3)
    assert (during.queued, during.leased) == (0, 3)
    await walk.control.pool.execute("UPDATE jobs SET idle_timeout = '90s' WHERE name = 'work'")
    assert (await walk.dispatcher.worker_load("ecs_platform")).keep_warm_seconds == 90
    assert (await walk.dispatcher.worker_load("nowhere")).keep_warm_seconds == 0, "no job wants anything there"
