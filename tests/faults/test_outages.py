"""Whatever is restarted, doubled or repeated: every event gives exactly one task per dependent job, and all end."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from tests.walk.walking import Walk, walking, working
from trace_platform.dispatcher.trigger import trigger
from trace_platform.errors import Unavailable
from trace_platform.lite.postgres import RunningServer
from trace_platform.ports import Outgoing
from trace_platform.store.db import OUTAGES

pytestmark = pytest.mark.anyio
EVENTS = 40


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def keep_triggering(walk: Walk, first: int = 0) -> None:
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
        told = "SELECT count(*) FROM events e JOIN datasets d ON d.id = e.dataset_uuid WHERE d.producer_job_name = $1"
        assert await pool.fetchval(told, job) == EVENTS, job
    unrouted = "SELECT count(*) FROM events WHERE routed_at IS NULL"
    assert await pool.fetchval(unrouted) == 0


async def test_two_dispatchers_and_two_workers_at_once_do_everything_once(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with (
        walking(state_db, queue_db, tmp_path, replica="one") as one,
        walking(state_db, queue_db, tmp_path, replica="two", deploys=False) as two,
        working(one.worker("w1")),
        working(two.worker("w2")),
    ):
        await asyncio.gather(keep_triggering(one), keep_triggering(two, EVENTS // 2))
        # Both triggered the second half: the same cursor of the same dataset is the same unit of work.
        await one.until("after", ["Completed"] * EVENTS)
        assert await one.control.pool.fetchval("SELECT count(*) FROM tasks") == 2 * EVENTS


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGKILL])
async def test_postgres_is_killed_in_the_middle_and_nothing_is_lost_or_doubled(
    state_db: str, queue_db: str, tmp_path: Path, postgres: RunningServer, how: signal.Signals
) -> None:
    async with AsyncExitStack() as stack:
        walk = await stack.enter_async_context(walking(state_db, queue_db, tmp_path))
        await stack.enter_async_context(working(walk.worker("w")))
        triggering = asyncio.create_task(keep_triggering(walk))
        for _ in range(2):
            await asyncio.sleep(0.3)
            postgres.restart(how)  # from this thread: the kernel ends a server with the thread that started it
        await triggering
        await walk.until("after", ["Completed"] * EVENTS)
        await history_is_right(walk)


async def test_wake_ups_that_come_again_and_again_run_nothing_twice(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with walking(state_db, queue_db, tmp_path) as walk, working(walk.worker("w")):
        await keep_triggering(walk)
        await walk.until("work", ["Completed"] * EVENTS)
        ids = [row["id"] for row in await walk.control.pool.fetch("SELECT id FROM tasks")]
        echo = [Outgoing(json.dumps({"task_id": str(one)}).encode()) for one in ids * 3]
        await walk.control.queue.publish("tasks-ecs_platform", echo)
        await walk.until("after", ["Completed"] * EVENTS)
        async with asyncio.timeout(60):
            while (await walk.control.queue.depth("tasks-ecs_platform")).ready:  # noqa: ASYNC110 - others empty it
                await asyncio.sleep(0.02)
        await history_is_right(walk)
