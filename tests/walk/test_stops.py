"""The worker of a task that is ended or paused is notified at once, before its next heartbeat.

The heartbeats of these tests are half an hour apart, so none of them can be the notification.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.support.dispatcher.control import PULL, deployed_and_active
from tests.support.identity.service_tokens import as_service
from tests.support.operators import registered
from tests.support.systems.walk import (
    DAG,
    Holds,
    Walk,
    held_task,
    held_worker,
    start_held_task,
    until_set,
    walking,
    working,
)
from tests.support.tls import https, trusting
from tests.support.verbs import activate_dag, cancel_task, deploy_dag, pause_job, trigger
from tests.support.waiting import SECONDS, until
from tracelake.dispatcher.tasks.stop_signals import Stops
from tracelake.errors import Unavailable
from tracelake.store.identity import User
from tracelake.wire.client import DispatcherClient
from tracelake.worker import lease_keeper
from tracelake.worker.listen_for_stops import listen_for_stops

pytestmark = pytest.mark.anyio

HALF_AN_HOUR = 1_800
SOURCE = """
name: feed
defaults: {runtime: ecs_platform}
jobs:
  - {name: follow, operator: pull, source: {kind: always_on}}
"""


@pytest.fixture(autouse=True)
def _beats_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_keeper, "MOST_SECONDS", float(HALF_AN_HOUR))


@pytest.fixture
async def walk(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Walk]:
    with registered(pull=PULL):
        async with walking(state_db, queue_db, tmp_path) as made:
            yield made


@asynccontextmanager
async def running_task(walk: Walk) -> AsyncIterator[Holds]:
    holds = Holds()
    async with working(held_worker(walk, holds)):
        await start_held_task(walk, holds, interval=HALF_AN_HOUR, lease=2 * HALF_AN_HOUR)
        yield holds


async def waiting(walk: Walk, count: int) -> None:
    await until(lambda: walk.control.after_commit.stops.waiting == count, "the calls for stops wait")


async def until_unchanged(dispatcher: DispatcherClient) -> None:
    """A Dispatcher that has just begun to listen does not know earlier changes, and reports that once."""
    mark = (await dispatcher.stops("")).mark
    while (answer := await dispatcher.stops(mark)).changed:
        mark = answer.mark


async def test_a_canceled_task_is_ended_at_once(walk: Walk) -> None:
    async with running_task(walk) as holds:
        await cancel_task(walk.control, walk.org.id, await held_task(walk), "not wanted any more")
        await until_set(holds.canceled, holds)
    assert await walk.statuses("work") == ["Canceled"]


async def test_a_task_that_another_replica_cancels_is_ended_at_once(
    walk: Walk, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with (
        walking(state_db, queue_db, tmp_path, replica="two", deploys=False) as other,
        running_task(walk) as holds,
    ):
        await cancel_task(other.control, walk.org.id, await held_task(walk), "not wanted any more")
        await until_set(holds.canceled, holds)


async def test_a_task_that_was_canceled_while_its_worker_was_cut_off_is_ended_when_it_reconnects(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    away, called_again = asyncio.Event(), asyncio.Event()

    class Line(httpx.AsyncBaseTransport):
        def __init__(self, line: httpx.AsyncBaseTransport) -> None:
            self.line = line

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if away.is_set() and request.url.path.endswith("/task-stops"):
                called_again.set()
                raise httpx.ConnectError("cut")
            return await self.line.handle_async_request(request)

        async def aclose(self) -> None:
            await self.line.aclose()

    async with walking(state_db, queue_db, tmp_path, line=Line) as walk, running_task(walk) as holds:
        away.set()
        walk.control.after_commit.stops.notify()  # ends the call that waits
        async with asyncio.timeout(SECONDS):
            await called_again.wait()
        mark = (await walk.control.after_commit.stops.after("", 0)).mark
        await cancel_task(walk.control, walk.org.id, await held_task(walk), "not wanted any more")
        await walk.control.after_commit.stops.after(mark, 60)  # a waiting call would have been answered by now
        away.clear()
        await until_set(holds.canceled, holds)


async def test_a_task_of_a_version_that_no_longer_serves_is_ended_at_once(walk: Walk) -> None:
    async with running_task(walk) as holds:
        changed = DAG.replace("name: work, operator: noop", "name: work, operator: noop, timeout_seconds: 77")
        assert changed != DAG
        deployed = await deploy_dag(walk.control, walk.org.id, walk.org.user, changed)
        await activate_dag(walk.control, walk.org.id, "walk", deployed.dag_version_id)
        await until_set(holds.canceled, holds)
        holds.let_go.set()  # the version that serves now has begun a task of its own


async def test_a_task_that_runs_for_too_long_is_ended_when_its_time_is_over(walk: Walk) -> None:
    await walk.control.pool.execute("UPDATE jobs SET timeout_seconds = 1 WHERE name = 'work'")
    async with running_task(walk) as holds:
        await until_set(holds.canceled, holds)
        ended = "SELECT outcome::text, error_message FROM task_attempts WHERE task_id = $1"
        row = await walk.control.pool.fetchrow(ended, await held_task(walk))
        assert row is not None
        assert tuple(row) == ("TimedOut", "attempt 1 ran longer than 1 s")
    assert await walk.statuses("work") == ["Failed"], "the worker reports nothing of an attempt that was ended"


async def test_other_tasks_of_the_worker_go_on(walk: Walk) -> None:
    async with running_task(walk) as holds:
        ended = await held_task(walk)
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=2, request_id=uuid4())
        await walk.until("work", ["Running", "Running"])
        await cancel_task(walk.control, walk.org.id, ended, "not wanted any more")
        await until_set(holds.canceled, holds)
        beaten = "SELECT last_heartbeat > started_at FROM tasks WHERE status = 'Running'"
        await until(lambda: walk.control.pool.fetchval(beaten), "a heartbeat is stored")
        assert holds.ended == {ended}
        holds.let_go.set()

        async def reached() -> bool:
            return sorted(await walk.statuses("work")) == ["Canceled", "Completed"]

        await until(reached, "one task is canceled and one completed")
    assert holds.ended == {ended}


async def test_a_source_that_is_paused_is_stopped_at_once(walk: Walk) -> None:
    holds = Holds()
    timed = SOURCE.replace(
        "{kind: always_on}",
        f"{{kind: always_on}}, heartbeat_timeout_seconds: {2 * HALF_AN_HOUR},"
        f" heartbeat_interval_seconds: {HALF_AN_HOUR}",
    )
    await deployed_and_active(walk.control, walk.org, timed)
    async with working(held_worker(walk, holds)):
        await until_set(holds.begun, holds)
        await pause_job(walk.control, User(walk.org.user, walk.org.id, "acme", None, "admin"), "feed", "follow")
        await until_set(holds.stop_requested, holds)
        holds.let_go.set()


async def test_a_waiting_call_is_answered_when_its_dispatcher_stops_and_does_not_delay_it(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as outlives:
        async with walking(state_db, queue_db, tmp_path) as walk:
            http = https(walk.listeners["dispatcher_internal"], walk.ca, headers=as_service("worker"))
            # Otherwise it may begin to listen while it stops: the call is answered then, and repeated in vain.
            await until(lambda: listens(walk), "the Dispatcher listens")
            waiting_call = asyncio.create_task(
                until_unchanged(DispatcherClient(await outlives.enter_async_context(http)))
            )
            await waiting(walk, 1)
        await waiting_call


def listens(walk: Walk) -> bool:
    return walk.control.metrics.registry.get_sample_value("trace_listening") == 1


async def test_a_worker_that_ends_as_soon_as_it_began_leaves_no_connection_open(walk: Walk) -> None:
    """At any moment of the call: Python warns of a connection that is not closed when it is collected."""
    headers, context = as_service("worker"), trusting(walk.ca)
    for turns in range(60):
        async with https(walk.listeners["dispatcher_internal"], walk.ca, headers=headers, verify=context) as http:
            dispatcher = DispatcherClient(http)
            hearing = asyncio.create_task(listen_for_stops(dispatcher, ()))
            if turns % 2:
                await dispatcher.ready()  # on a connection that both may use
            for _ in range(turns):
                await asyncio.sleep(0 if turns < 40 else 0.001)
            hearing.cancel()
            await asyncio.wait({hearing})
    gc.collect()


async def test_a_call_whose_worker_hangs_up_no_longer_waits(walk: Walk) -> None:
    waiting_call = asyncio.create_task(until_unchanged(walk.dispatcher))
    await waiting(walk, 1)
    waiting_call.cancel()
    await waiting(walk, 0)


async def test_a_task_that_ended_between_two_calls_is_reported() -> None:
    stops = Stops()
    first = await stops.after("", 0)
    assert not first.changed
    stops.wake()
    second = await stops.after(first.mark, 3_600)
    assert second.changed
    assert not (await stops.after(second.mark, 0)).changed


async def test_a_call_without_a_mark_gets_one_at_once() -> None:
    stops = Stops()
    assert (await stops.after("", 3_600)).mark == (await stops.after("", 3_600)).mark


@pytest.mark.parametrize("mark", ["00000000-0", "00000000-7"])
async def test_a_mark_of_another_process_waits_for_what_comes(mark: str) -> None:
    """Else a worker whose calls go to two replicas in turn would be answered at once each time."""
    stops = Stops()
    stops.wake()
    assert not (await stops.after(mark, 0)).changed
    waits = asyncio.create_task(stops.after(mark, 3_600))
    await asyncio.sleep(0)
    stops.wake()
    assert (await waits).changed


async def test_many_tasks_that_end_together_are_one_notification() -> None:
    stops, notified = Stops(), []
    stops.notify_replicas(lambda: notified.append(1))
    before = await stops.after("", 0)
    for _ in range(1_000):
        stops.notify()
    assert (await stops.after(before.mark, 3_600)).changed
    assert notified == [1]


async def test_the_call_needs_the_token_of_a_service(walk: Walk) -> None:
    walk.dispatcher.http.headers["X-Trace-Worker-Token"] = "another"
    with pytest.raises(Unavailable, match="401"):
        await walk.dispatcher.stops("")
