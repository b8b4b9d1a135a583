"""A worker whose slots are shared by both tiers: new data finds a free slot, and catching up keeps its share."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.dispatcher.control import deployed_and_active
from tests.support.systems.walk import Walk, walking, working
from tests.support.verbs import trigger
from tests.support.waiting import SECONDS, until
from tracelake.operators.api.outcome import Outcome
from tracelake.wire.task.lifecycle import TaskPayload
from tracelake.worker.wrapper import Wrapper

pytestmark = pytest.mark.anyio

DAG = """
name: tiers
defaults: {runtime: dispatcher}
jobs:
  - {name: ask_new, operator: noop, source: {kind: manual}}
  - {name: new, operator: noop, runtime: ecs_platform, inputs: [{from: {job: ask_new}}]}
  - {name: ask_old, operator: noop, source: {kind: manual}}
  - {name: old, operator: noop, runtime: ecs_platform, priority: bulk, inputs: [{from: {job: ask_old}}]}
"""
SLOTS, NORMAL_SHARE = 4, 3


@pytest.fixture
async def walk(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Walk]:
    async with walking(state_db, queue_db, tmp_path) as made:
        await deployed_and_active(made.control, made.org, DAG)
        yield made


def worker_of_both(walk: Walk, run: Callable[[TaskPayload], Outcome]) -> Wrapper:
    return replace(walk.worker("one", run), concurrency=SLOTS, normal_share=NORMAL_SHARE, reserved=1)


async def trigger_each(walk: Walk, job: str, cursors: Iterable[int]) -> None:
    for cursor in cursors:
        await trigger(walk.control, walk.org.id, "tiers", f"ask_{job}", cursor=cursor, request_id=uuid4())


async def test_new_data_finds_a_free_slot_while_long_bulk_tasks_hold_all_that_they_may(walk: Walk) -> None:
    begun, may_end = list[str](), threading.Event()

    def run(task: TaskPayload) -> Outcome:
        begun.append(task.job.name)
        assert task.job.name == "new" or may_end.wait(SECONDS)
        return Outcome()

    async with working(worker_of_both(walk, run)):
        await trigger_each(walk, "old", range(10))
        await until(lambda: len(begun) == SLOTS - 1, "bulk holds every slot but the one that is reserved")
        for number in range(1, 6):
            await trigger_each(walk, "new", [number])
            await walk.until("new", ["Completed"] * number)
        assert begun.count("old") == SLOTS - 1, "though nothing else waited for the reserved one"
        may_end.set()
        await walk.until("old", ["Completed"] * 10)


async def test_while_both_tiers_wait_each_gets_its_share_and_then_bulk_gets_everything(walk: Walk) -> None:
    begun = list[str]()

    def run(task: TaskPayload) -> Outcome:
        begun.append(task.job.name)
        return Outcome()

    for job in ("old", "new"):
        await trigger_each(walk, job, range(60))
    await walk.until("old", ["Queued"] * 60)
    await walk.until("new", ["Queued"] * 60)
    await walk.until_outbox_is_empty()
    async with working(worker_of_both(walk, run)):
        for job in ("old", "new"):
            await walk.until(job, ["Completed"] * 60)
    both = begun[:60]  # of new there were more then: it ends with the 80th, if bulk gets a quarter
    expected = len(both) / (NORMAL_SHARE + 1)
    assert 0.6 * expected <= both.count("old") <= 1.4 * expected, begun
