"""A source as it really runs: a Dispatcher with its loops, a worker, and an operator that follows until it is stopped.

Whatever stops it, it goes on where it was: its events are 1, 2, 3, ... without a gap or a duplicate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.dispatcher.control import PULL, deployed_and_active
from tests.support.operators import registered
from tests.support.systems.walk import Walk, walking, working
from tests.support.verbs import pause_job, resume_job
from tests.support.waiting import until
from tracelake.dispatcher.sources.keep_running import KeepSourcesRunning
from tracelake.dispatcher.sources.stop_all import release_sources
from tracelake.operators.api.context import Resources, TaskApi
from tracelake.operators.api.outcome import Outcome
from tracelake.ports import ObjectStore
from tracelake.store.identity import User
from tracelake.wire.task.lifecycle import Claimed, TaskPayload
from tracelake.wire.task.outputs import CompleteRequest, EventBody
from tracelake.worker.run_task import Finished, Runner
from tracelake.worker.wrapper import Wrapper

pytestmark = pytest.mark.anyio

DAG = """
name: feed
defaults: {runtime: ecs_platform}
jobs:
  - name: follow
    operator: pull
    source: {kind: always_on}
    bootstrap: {reset_outputs: true}
    retry: {backoff: 1s}
    heartbeat_timeout_seconds: 4
    heartbeat_interval_seconds: 1
"""


@dataclass
class Follower:
    """Counts on from its state, and emits each number."""

    resets: list[int] = field(default_factory=list)
    runs: int = 0

    def __call__(self, task: TaskPayload, listener: TaskApi) -> Outcome:
        self.runs += 1
        n = int((task.state or {}).get("n", 0))
        if task.bootstrap is not None and task.bootstrap.reset_outputs:
            self.resets.append(n)
        [out] = task.outputs
        while not (listener.stop_requested.wait(0.02) or listener.lost.is_set()):
            n += 1
            event = EventBody(dataset_uuid=out.dataset_uuid, dataset_version=out.dataset_version, cursor=n)
            listener.send_events([event], [], {"n": n})
            listener.report({"done": n, "total": None, "message": "following"})
        return Outcome(state={"n": n})


@dataclass(frozen=True)
class Sources(Runner):
    """Runs the follower in the place of an operator, and needs no Spark."""

    follow: Callable[[TaskPayload, TaskApi], Outcome] = field(default_factory=Follower)

    def _outcome(self, claimed: Claimed, listener: TaskApi, fence: dict[str, Any], objects: ObjectStore) -> Finished:
        del objects
        outcome = self.follow(claimed.task, listener)
        return Finished(CompleteRequest(**fence, status="Completed", state=outcome.state))


def worker(walk: Walk, name: str, follow: Callable[[TaskPayload, TaskApi], Outcome]) -> Wrapper:
    return replace(walk.worker(name), runner=Sources(walk.control.objects, Resources(), follow=follow))


@pytest.fixture
async def walk(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Walk]:
    with registered(pull=PULL):
        async with walking(state_db, queue_db, tmp_path) as made:
            await deployed_and_active(made.control, made.org, DAG)
            yield made


def user(walk: Walk) -> User:
    return User(walk.org.user, walk.org.id, "acme", None, "admin")


async def source(walk: Walk) -> asyncpg.Record | None:
    return await walk.control.pool.fetchrow(
        "SELECT s.*, s.state::text AS state_text, t.status::text AS task_status, t.attempt,"
        " t.progress::text AS progress FROM sources s LEFT JOIN tasks t ON t.id = s.task_id"
    )


async def until_source(walk: Walk, fits: Callable[[asyncpg.Record | None], bool]) -> asyncpg.Record | None:
    async def found() -> tuple[asyncpg.Record | None] | None:
        walk.control.after_commit.sources.notify()  # the loop would look by itself every few seconds
        row = await source(walk)
        return (row,) if fits(row) else None

    return (await until(found, "the source is as expected", every=0.05))[0]


def runs(row: asyncpg.Record | None) -> bool:
    return row is not None and row["state_text"] == "Running" and row["task_status"] == "Running"


def waits(row: asyncpg.Record | None) -> bool:
    return row is not None and row["state_text"] == "Pending"


async def emitted(walk: Walk) -> list[int]:
    rows = await walk.control.pool.fetch("SELECT cursor_value FROM events WHERE kind = 'cursor' ORDER BY 1")
    return [row["cursor_value"] for row in rows]


async def grown(walk: Walk, by: int = 3) -> None:
    """It follows: more events were emitted, each number once."""
    before = len(await emitted(walk))

    async def more() -> list[int] | None:
        found = await emitted(walk)
        return found if len(found) >= before + by else None

    found = await until(more, f"{by} more events are stored")
    assert found == list(range(1, len(found) + 1))


async def test_a_pause_stops_it_and_its_end_lets_the_same_run_go_on(walk: Walk) -> None:
    follow = Follower()
    async with working(worker(walk, "one", follow)):
        first = await until_source(walk, runs)
        await grown(walk)
        reported = await until_source(walk, lambda row: row is not None and row["progress"] is not None)
        await pause_job(walk.control, user(walk), "feed", "follow")
        await until_source(walk, waits)
        count = len(await emitted(walk))
        assert follow.runs == 1
        await resume_job(walk.control, user(walk), "feed", "follow")
        again = await until_source(walk, runs)
        await grown(walk)
    assert first is not None
    assert again is not None
    assert reported is not None
    assert "following" in reported["progress"]
    assert again["run_id"] == first["run_id"]
    assert len(await emitted(walk)) > count
    assert follow.resets == [0]


async def test_a_shutdown_drains_it_and_the_next_start_goes_on_as_the_same_run(walk: Walk) -> None:
    follow = Follower()
    async with working(worker(walk, "one", follow)):
        first = await until_source(walk, runs)
        await grown(walk)
        assert await walk.dispatcher.drain_sources() == 1
        row = await source(walk)
        assert row is not None
        assert waits(row) or (row["state_text"], row["drain_reason"]) == ("Draining", "shutdown")  # it may be quick
    await until_source(walk, waits)  # the worker ended: it had stopped its source
    for _ in range(2):  # as often as it takes to settle and to start one
        await KeepSourcesRunning(walk.control.pool, walk.control.after_commit).once()
    assert waits(await source(walk))  # and it is not started
    await release_sources(walk.control.pool, walk.control.after_commit.sources)
    async with working(worker(walk, "two", follow)):
        again = await until_source(walk, runs)
        await grown(walk)
    assert first is not None
    assert again is not None
    assert again["run_id"] == first["run_id"]
    assert follow.resets == [0]


async def test_a_deactivation_drains_it_before_its_successor_starts(walk: Walk) -> None:
    old, new = Follower(), Follower()
    running: list[Follower] = [old]

    def either(task: TaskPayload, listener: TaskApi) -> Outcome:
        return running[0](task, listener)

    plain = DAG.replace("bootstrap: {reset_outputs: true}", "priority: normal")
    await deployed_and_active(walk.control, walk.org, plain)
    async with working(worker(walk, "one", either)):
        first = await until_source(walk, runs)
        await grown(walk)
        running[0] = new
        await deployed_and_active(walk.control, walk.org, plain.replace("backoff: 1s", "backoff: 2s"))
        assert first is not None
        again = await until_source(walk, lambda row: runs(row) and row is not None and row["job_id"] != first["job_id"])
        await grown(walk)
    assert again is not None
    assert again["run_id"] != first["run_id"]  # another version is another run
    assert (old.runs, new.runs) == (1, 1)


async def test_a_lost_worker_makes_it_dead_and_then_it_goes_on_as_the_same_task(walk: Walk) -> None:
    follow = Follower()
    lost = asyncio.create_task(worker(walk, "lost", follow).work(asyncio.Event()))
    first = await until_source(walk, runs)
    await grown(walk)
    lost.cancel()
    with suppress(asyncio.CancelledError):
        await lost
    dead = await until_source(walk, lambda row: row is not None and row["state_text"] == "Dead")
    async with working(worker(walk, "two", follow)):
        again = await until_source(walk, runs)
        await grown(walk)
    assert first is not None
    assert dead is not None
    assert again is not None
    assert "lease" in dead["last_error"]
    assert (again["task_id"], again["run_id"], again["attempt"]) == (first["task_id"], first["run_id"], 2)
    assert follow.resets == [0]
