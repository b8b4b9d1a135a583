"""What has become of a trigger: its own tasks, everything downstream, and what was given up."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.job_chain import Chain, claimed, completion, deploy_chain, drained, tasks_of
from tests.support.verbs import trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.events.trigger_progress import trigger_progress
from tracelake.errors import NotFound
from tracelake.wire.user.dags import TriggerProgress

pytestmark = pytest.mark.anyio


async def triggered(control: Control, chain: Chain, *, cursor: int = 1) -> UUID:
    request = uuid4()
    await trigger(control, chain.org.id, "chain", "first", cursor=cursor, request_id=request)
    return request


async def progress(control: Control, chain: Chain, request: UUID, *, downstream: bool = False) -> TriggerProgress:
    return await trigger_progress(control.pool, chain.org.id, request, downstream=downstream)


async def end(control: Control, chain: Chain, job: str, **result: object) -> None:
    """The only open task of the job ends, and its event is routed."""
    (task_id,) = await tasks_of(control, chain, job)
    task, claims = await claimed(control, task_id)
    events = [] if result else [chain.event(job, cursor=5)]
    await control.completer()(completion(task, events=events, **result), claims)
    await drained(control)


async def test_a_trigger_has_ended_when_its_own_tasks_have(control: Control) -> None:
    chain = await deploy_chain(control)
    request = await triggered(control, chain)
    now = await progress(control, chain, request)
    assert (now.tasks, now.waiting_events, now.ended) == (0, 1, False), "its event is not routed yet"
    await drained(control)
    now = await progress(control, chain, request)
    assert (now.tasks, now.queued, now.ended, now.succeeded) == (1, 1, False, False)
    await end(control, chain, "second")
    now = await progress(control, chain, request)
    assert (now.tasks, now.completed, now.ended, now.succeeded) == (1, 1, True, True)


async def test_downstream_of_a_trigger_all_tasks_count_that_follow(control: Control) -> None:
    chain = await deploy_chain(control)
    request = await triggered(control, chain)
    await drained(control)
    await end(control, chain, "second")
    now = await progress(control, chain, request, downstream=True)
    assert (now.tasks, now.completed, now.queued, now.ended) == (2, 1, 1, False)
    await end(control, chain, "third")
    now = await progress(control, chain, request, downstream=True)
    assert (now.tasks, now.completed, now.ended, now.succeeded) == (2, 2, True, True)


async def test_a_task_that_is_retried_has_not_ended_and_one_that_failed_for_good_is_named(control: Control) -> None:
    chain = await deploy_chain(control)
    request = await triggered(control, chain)
    await drained(control)
    await end(control, chain, "second", status="Failed", error_message="later", retryable=True)
    now = await progress(control, chain, request)
    assert (now.queued, now.failed, now.ended) == (1, 0, False)
    await control.pool.execute("UPDATE tasks SET next_retry_at = NULL")
    now = await progress(control, chain, request)
    assert (now.queued, now.failed, now.ended, now.succeeded) == (0, 1, True, False)
    assert [(task.job, task.status, task.reason) for task in now.failures] == [("second", "Failed", "later")]


async def test_a_task_that_an_earlier_trigger_created_counts_for_a_later_one(control: Control) -> None:
    chain = await deploy_chain(control)
    await triggered(control, chain)
    request = await triggered(control, chain)
    await drained(control)
    now = await progress(control, chain, request)
    assert (now.tasks, now.queued, now.ended) == (1, 1, False)


async def test_a_task_whose_work_a_later_one_does_is_followed_to_that(control: Control) -> None:
    chain = await deploy_chain(control)
    first, later = await triggered(control, chain), await triggered(control, chain, cursor=2)
    await drained(control)
    canceled, instead = await tasks_of(control, chain, "second")
    await control.pool.execute(
        "UPDATE tasks SET status = 'Canceled', completed_at = now(), cancel_reason = 'superseded', superseded_by = $2"
        " WHERE id = $1",
        canceled,
        instead,
    )
    now = await progress(control, chain, first)
    assert (now.tasks, now.completed, now.queued, now.ended) == (2, 1, 1, False)
    assert (await progress(control, chain, later)).tasks == 1


async def test_an_event_whose_routing_was_given_up_ends_the_wait_as_a_failure(control: Control) -> None:
    chain = await deploy_chain(control)
    request = await triggered(control, chain)
    await control.pool.execute("UPDATE outbox SET status = 'Failed', processed_at = now(), last_error = 'x'")
    now = await progress(control, chain, request)
    assert (now.failed_events, now.ended, now.succeeded) == (1, True, False)


async def test_a_trigger_of_another_organisation_is_not_found(control: Control) -> None:
    chain, other = await deploy_chain(control), await deploy_chain(control, slug="rival")
    request = await triggered(control, chain)
    for org, asked in ((other.org.id, request), (chain.org.id, uuid4())):
        with pytest.raises(NotFound, match="there is no trigger"):
            await trigger_progress(control.pool, org, asked, downstream=True)
