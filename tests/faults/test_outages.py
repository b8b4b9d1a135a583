"""Whatever is restarted, doubled or repeated: every event gives exactly one task per dependent job, and all end."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.support.postgres import RunningServer
from tests.support.systems.processes import drained
from tests.support.systems.walk import Walk, walking, working
from tests.support.verbs import trigger
from tests.support.waiting import until
from tracelake.errors import Unavailable
from tracelake.operators.api.outcome import Outcome
from tracelake.ports import Outgoing
from tracelake.store.db import OUTAGES
from tracelake.wire.task.lifecycle import TaskPayload
from tracelake.worker.run_task import run_pure

pytestmark = pytest.mark.anyio
EVENTS = 40


async def trigger_all(walk: Walk, first: int = 0) -> None:
    """Each until it is accepted, whatever happens meanwhile; repeated with the same request, so that it counts once."""
    for cursor in range(first, EVENTS):
        request = uuid4()
        while True:
            try:
                await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=request)
            except (*OUTAGES, Unavailable):
                await asyncio.sleep(0.05)
            else:
                break


@dataclass
class Ran:
    """What workers ran, in their order."""

    tasks: list[UUID] = field(default_factory=list)

    def __call__(self, task: TaskPayload) -> Outcome:
        self.tasks.append(task.task_id)
        return run_pure(task)


async def history_is_right(walk: Walk) -> None:
    """Read from what is stored, not from what the code believes."""
    pool = walk.control.pool
    doubled = await pool.fetch(
        "SELECT job_id, event_id, count(*) FROM tasks GROUP BY 1, 2 HAVING count(*) > 1"
        " UNION ALL SELECT task_id, NULL, count(*) FROM task_attempts WHERE outcome = 'Completed'"
        " GROUP BY 1 HAVING count(*) > 1"
    )
    assert doubled == []
    for job in ("ask", "work", "after"):
        assert await events_of(walk, job) == EVENTS, job
    unrouted = "SELECT count(*) FROM events WHERE routed_at IS NULL"
    assert await pool.fetchval(unrouted) == 0


async def events_of(walk: Walk, job: str) -> int:
    sql = "SELECT count(*) FROM events e JOIN datasets d ON d.id = e.dataset_uuid WHERE d.producer_job_name = $1"
    found: int = await walk.control.pool.fetchval(sql, job)
    return found


async def everything_ran_once(walk: Walk, ran: Sequence[UUID]) -> None:
    """No task had a second attempt, and no attempt was worked on twice."""
    pool = walk.control.pool
    assert await pool.fetchval("SELECT count(*) FROM tasks") == 2 * EVENTS
    attempts = await pool.fetch("SELECT task_id, outcome::text FROM task_attempts")
    assert {row["outcome"] for row in attempts} == {"Completed"}
    assert len(attempts) == len({row["task_id"] for row in attempts}) == 2 * EVENTS
    work = "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work'"
    assert sorted(ran) == sorted(row["id"] for row in await pool.fetch(work))


async def test_two_dispatchers_and_two_workers_at_once_do_everything_once(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    ran = Ran()
    async with (
        walking(state_db, queue_db, tmp_path, replica="one") as first,
        walking(state_db, queue_db, tmp_path, replica="two", deploys=False) as second,
        working(first.worker("w1", ran)),
        working(second.worker("w2", ran)),
    ):
        await asyncio.gather(trigger_all(first), trigger_all(second, EVENTS // 2))
        # Both triggered the second half: the same cursor of the same dataset is the same unit of work.
        await first.until("after", ["Completed"] * EVENTS)
        await first.until_outbox_is_empty()
        await everything_ran_once(first, ran.tasks)
        assert [await events_of(first, job) for job in ("work", "after")] == [EVENTS, EVENTS]


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGKILL])
async def test_postgres_is_killed_in_the_middle_and_nothing_is_lost_or_doubled(
    state_db: str, queue_db: str, tmp_path: Path, postgres: RunningServer, how: signal.Signals
) -> None:
    async with AsyncExitStack() as stack:
        walk = await stack.enter_async_context(walking(state_db, queue_db, tmp_path))
        await stack.enter_async_context(working(walk.worker("w")))
        queue = await stack.enter_async_context(asyncpg.create_pool(queue_db, min_size=0, max_size=1))
        triggering = asyncio.create_task(trigger_all(walk))
        for count in (EVENTS // 8, EVENTS // 4):
            await completed(walk, count)
            postgres.restart(how)  # from this thread: the kernel ends a server with the thread that started it
        await triggering
        # A wake-up whose receiver was cut off before it got it is delivered again when its visibility is over.
        await drained(walk.control.pool, queue)
        assert await walk.statuses("after") == ["Completed"] * EVENTS
        await history_is_right(walk)


async def completed(walk: Walk, count: int) -> None:
    """So many tasks are done, at least."""

    async def reached() -> bool:
        return (await walk.statuses("after")).count("Completed") >= count

    await until(reached, f"{count} tasks are completed", ignoring=OUTAGES)


async def test_wake_ups_that_come_again_and_again_run_nothing_twice(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    ran = Ran()
    async with walking(state_db, queue_db, tmp_path) as walk, working(walk.worker("w", ran)):
        await trigger_all(walk)
        await walk.until("work", ["Completed"] * EVENTS)
        ids = [row["id"] for row in await walk.control.pool.fetch("SELECT id FROM tasks")]
        echo = [Outgoing(json.dumps({"task_id": str(item)}).encode()) for item in ids * 3]
        await walk.control.queue.publish("tasks-ecs_platform", echo)
        await walk.until("after", ["Completed"] * EVENTS)

        async def reached() -> bool:
            return not (await walk.control.queue.depth("tasks-ecs_platform")).ready

        await until(reached, "every wake-up is received")
        await walk.until_outbox_is_empty()
        await history_is_right(walk)
        await everything_ran_once(walk, ran.tasks)
