"""Completions that arrive together are one batch, whatever each carries; one that is refused takes no other with it."""

from __future__ import annotations

import pytest

from tests.support.dispatcher.job_chain import a_task, claimed, completion, deploy_chain, tasks_of
from tests.support.dispatcher.staged_files import staged
from tracelake.dispatcher.control import Control
from tracelake.errors import Conflict, LeaseLost
from tracelake.wire.task.markers import ColumnEntry
from tracelake.wire.task.outputs import CompleteAnswer

pytestmark = pytest.mark.anyio

OTHER = [ColumnEntry(name="block_number", type="string")]


async def batches(control: Control) -> int:
    (family,) = (item for item in control.metrics.batch_size.collect())
    (count,) = (
        sample.value
        for sample in family.samples
        if sample.name.endswith("_count") and "complete" in sample.labels.values()
    )
    return int(count)


async def test_outputs_events_and_failures_are_ended_in_one_batch_and_routed_at_once(control: Control) -> None:
    chain = await deploy_chain(control)
    (writes, its), (reports, theirs), (fails, own) = [
        await claimed(control, await a_task(control, chain)) for _ in "abc"
    ]
    answers = await control.completer().several(
        [
            (
                completion(
                    writes,
                    outputs=staged(control.objects, writes, (0, 9)),
                    events=[chain.event("first", start=0, end=9)],
                ),
                its,
            ),
            (completion(reports, events=[chain.event("first", cursor=7)]), theirs),
            (completion(fails, status="Failed", error_message="boom"), own),
        ]
    )
    first, second, third = answers
    assert isinstance(first, CompleteAnswer)
    assert first.commits == {chain.datasets["first"]: 1}
    assert second == CompleteAnswer(status="Completed")
    assert isinstance(third, CompleteAnswer)
    assert third.next_retry_at is not None
    assert await batches(control) == 1
    assert len(await tasks_of(control, chain, "second")) == 2
    assert (
        await control.pool.fetchval("SELECT count(*) FROM events WHERE commit_number = 1 AND routed_at IS NOT NULL")
        == 1
    )


async def test_a_completion_whose_outputs_are_refused_takes_no_other_with_it_and_leaves_nothing(
    control: Control,
) -> None:
    chain = await deploy_chain(control)
    wide, wide_claims = await claimed(control, await a_task(control, chain))
    complete = control.completer()
    await complete(completion(wide, outputs=staged(control.objects, wide, (0, 99))), wide_claims)
    (odd, its), (good, theirs), (plain, own) = [await claimed(control, await a_task(control, chain)) for _ in "abc"]
    refused, accepted, ended = await complete.several(
        [
            (completion(odd, outputs=staged(control.objects, odd, (200, 299), columns=OTHER)), its),
            (completion(good, outputs=staged(control.objects, good, (100, 199))), theirs),
            (completion(plain), own),
        ]
    )
    assert isinstance(refused, Conflict)
    assert accepted == CompleteAnswer(status="Completed", commits={chain.datasets["first"]: 2})
    assert ended == CompleteAnswer(status="Completed")
    keys = "SELECT partition_key FROM partition_versions WHERE valid_to IS NULL ORDER BY valid_from"
    assert [row[0] for row in await control.pool.fetch(keys)] == ["0-99", "100-199"]
    assert await control.pool.fetchval("SELECT status::text FROM tasks WHERE id = $1", odd.task.task_id) == "Running"


async def test_a_late_or_repeated_completion_in_a_batch_is_answered_as_if_it_came_alone(control: Control) -> None:
    chain, complete = await deploy_chain(control), control.completer()
    (done, its), (canceled, theirs) = [await claimed(control, await a_task(control, chain)) for _ in "ab"]
    again = completion(done, outputs=staged(control.objects, done, (0, 9))), its
    first = await complete(*again)
    await control.pool.execute(
        "UPDATE tasks SET status = 'Canceled', completed_at = now(), lease_expires_at = NULL, cancel_reason = 'x'"
        " WHERE id = $1",
        canceled.task.task_id,
    )
    lost = completion(canceled, outputs=staged(control.objects, canceled, (10, 19))), theirs
    repeated, refused = await complete.several([again, lost])
    assert repeated == first
    assert isinstance(refused, LeaseLost)
    assert await control.pool.fetchval("SELECT count(*) FROM commits") == 1


async def test_a_completion_that_postgres_refuses_is_refused_alone(control: Control) -> None:
    chain = await deploy_chain(control)
    (bad, its), (good, theirs) = [await claimed(control, await a_task(control, chain)) for _ in "ab"]
    await control.pool.execute(
        f"ALTER TABLE tasks ADD CONSTRAINT odd CHECK (status <> 'Completed' OR id <> '{bad.task.task_id}')"
    )
    refused, accepted = await control.completer().several([(completion(bad), its), (completion(good), theirs)])
    assert "odd" in str(refused)
    assert accepted == CompleteAnswer(status="Completed")
