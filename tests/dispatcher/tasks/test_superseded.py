"""A job that makes its whole output anew runs once for the newest of several queued updates."""

from __future__ import annotations

import pytest

from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain, drained, tasks_of
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.why.explain import explain_task
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest, NotClaimed
from tracelake.wire.task.outputs import InvalidationBody

pytestmark = pytest.mark.anyio


async def updated(control: Control, updates: int, *, whole: bool = True, slots: int | None = None) -> Chain:
    """So many updates of `first` wait for `second`."""
    chain = await deploy_chain(control, max_concurrency=slots)
    await control.pool.execute("UPDATE jobs SET makes_whole = $2 WHERE id = $1", chain.jobs["second"], whole)
    await update(control, chain, range(updates))
    return chain


async def update(control: Control, chain: Chain, cursors: range) -> None:
    task, claims = await claimed(control, await a_task(control, chain))
    events = [chain.event("first", cursor=cursor) for cursor in cursors]
    await control.completer()(completion(task, events=events), claims)
    await drained(control)


async def test_of_several_queued_updates_the_newest_is_run_and_the_others_are_closed(control: Control) -> None:
    chain = await updated(control, 4)
    *older, newest = await tasks_of(control, chain, "second")
    (first,) = await control.claimer().claim([ClaimRequest(task_id=older[0], worker_id="w")])
    assert first == NotClaimed(reason="Canceled")
    states = "SELECT id, status::text, superseded_by FROM tasks WHERE job_id = $1 ORDER BY id"
    rows = [tuple(row) for row in await control.pool.fetch(states, chain.jobs["second"])]
    assert rows == [*((item, "Canceled", newest) for item in older), (newest, "Queued", None)]
    why = await explain_task(control.pool, chain.org.id, older[0])
    assert why.stopped is not None
    assert why.stopped.rule == "superseded"
    assert str(newest) in why.verdict
    task, claims = await claimed(control, newest)
    await control.completer()(completion(task), claims)


async def test_claimed_together_the_newest_is_given_and_updates_that_come_later_are_run_later(control: Control) -> None:
    chain = await updated(control, 3)
    requests = [ClaimRequest(task_id=item, worker_id="w") for item in await tasks_of(control, chain, "second")]
    *older, newest = await control.claimer().claim(requests)
    assert older == [NotClaimed(reason="Canceled")] * 2
    assert isinstance(newest, Claimed)
    await update(control, chain, range(3, 5))
    late = [ClaimRequest(task_id=item, worker_id="w") for item in (await tasks_of(control, chain, "second"))[3:]]
    *_, last = await control.claimer().claim(late)
    assert isinstance(last, Claimed), "what came while the whole was made needs one more"


async def test_what_waits_for_a_slot_is_closed_too_and_the_slot_goes_to_the_newest(control: Control) -> None:
    chain = await updated(control, 5, slots=1)
    first, *others, newest = await tasks_of(control, chain, "second")
    (answer,) = await control.claimer().claim([ClaimRequest(task_id=first, worker_id="w")])
    assert answer == NotClaimed(reason="Canceled")
    canceled = "SELECT count(*) FROM tasks WHERE status = 'Canceled' AND superseded_by = $1"
    assert await control.pool.fetchval(canceled, newest) == 1 + len(others)
    await drained(control)
    await claimed(control, newest)


async def test_jobs_that_write_partitions_run_for_each_update(control: Control) -> None:
    chain = await updated(control, 3, whole=False)
    for task in await tasks_of(control, chain, "second"):
        await claimed(control, task)


async def test_an_invalidation_is_never_closed_by_a_later_update(control: Control) -> None:
    chain = await updated(control, 0)
    task, claims = await claimed(control, await a_task(control, chain))
    gone = InvalidationBody(
        dataset_uuid=chain.datasets["first"], dataset_version=chain.versions["first"], start=0, end=9, reason="reorg"
    )
    await control.completer()(completion(task, invalidations=[gone]), claims)
    await drained(control)
    await update(control, chain, range(2))
    invalidation, *_ = await tasks_of(control, chain, "second")
    await claimed(control, invalidation)
