"""A task's life by its verbs, on real Postgres: fenced, idempotent, once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.support.dispatcher.job_chain import (
    a_task,
    claimed,
    completion,
    deploy_chain,
    drained,
    expire,
    retry_now,
    status,
    tasks_of,
)
from tests.support.dispatcher.staged_files import staged
from tests.support.verbs import accept_events
from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.tasks.claim import claim_again
from tracelake.dispatcher.tasks.renew_lease import Beat
from tracelake.errors import Conflict, Forbidden, InvalidRequest, LeaseLost
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest, HeartbeatRequest, NotClaimed
from tracelake.wire.task.markers import ColumnEntry
from tracelake.wire.task.outputs import CompleteRequest, EventsRequest, InvalidationBody

pytestmark = pytest.mark.anyio


async def test_of_many_claims_at_once_exactly_one_is_given(control: Control) -> None:
    chain = await deploy_chain(control)
    task = await a_task(control, chain)
    claim = control.claimer().batched()
    answers = await asyncio.gather(*(claim(ClaimRequest(task_id=task, worker_id=f"w{n}")) for n in range(20)))
    assert sum(isinstance(answer, Claimed) for answer in answers) == 1
    assert {answer.reason for answer in answers if isinstance(answer, NotClaimed)} == {"AlreadyRunning"}


async def test_a_claim_whose_answer_was_lost_is_answered_again_with_its_lease_and_its_inputs(control: Control) -> None:
    chain = await deploy_chain(control)
    complete, claim = control.completer(), control.claimer().batched()

    async def first_writes(start: int) -> None:
        task, claims = await claimed(control, await a_task(control, chain))
        await complete(completion(task, outputs=staged(control.objects, task, (start, start + 9))), claims)

    await first_writes(0)
    request = ClaimRequest(task_id=await a_task(control, chain, "second"), worker_id="w", claim_id=uuid4())
    heard = await claim(request)
    assert isinstance(heard, Claimed)
    assert [item.commit for item in heard.task.inputs] == [1]
    await first_writes(10)
    await control.pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE id = $1", request.task_id)

    for other in ({"worker_id": "v"}, {"claim_id": uuid4()}, {"claim_id": None}):
        assert await claim(msgspec.structs.replace(request, **other)) == NotClaimed(reason="AlreadyRunning"), other

    again = await claim(request)
    assert isinstance(again, Claimed)
    assert (again.attempt, again.lease_token, again.task) == (heard.attempt, heard.lease_token, heard.task)
    assert again.lease_expires_at > heard.lease_expires_at
    assert (
        decode(parse_token(again.capability_token).payload).grants
        == decode(parse_token(heard.capability_token).payload).grants
    )
    attempts = "SELECT count(*) FROM task_attempts WHERE task_id = $1"
    assert await control.pool.fetchval(attempts, request.task_id) == 1

    await complete(completion(again), decode(parse_token(again.capability_token).payload))
    assert await claim(request) == NotClaimed(reason="Completed")
    assert await claim_again(control.hot, [request]) == [], "an ended task cannot be claimed again"


async def test_a_worker_that_gets_no_answer_holds_a_task_for_two_leases_at_most(control: Control) -> None:
    chain = await deploy_chain(control)
    request = ClaimRequest(task_id=await a_task(control, chain), worker_id="w", claim_id=uuid4())
    await control.claimer().claim([request])
    long_ago = "UPDATE tasks SET started_at = now() - $2 * interval '1 second', lease_expires_at = now() WHERE id = $1"
    seconds = await control.pool.fetchval("SELECT max(heartbeat_timeout_seconds) FROM jobs")
    left = "SELECT extract(epoch FROM lease_expires_at - now()) FROM tasks WHERE id = $1"
    for seconds_since_start, lease in ((seconds / 2, seconds), (seconds * 1.5, seconds / 2), (seconds * 3, 0)):
        await control.pool.execute(long_ago, request.task_id, seconds_since_start)
        await control.claimer().claim([request])
        assert float(await control.pool.fetchval(left, request.task_id)) == pytest.approx(lease, abs=5), (
            seconds_since_start
        )


async def test_an_error_of_one_claim_is_returned_to_its_caller_only(control: Control) -> None:
    chain = await deploy_chain(control)
    good, bad = [ClaimRequest(await a_task(control, chain, name), "w", uuid4()) for name in ("first", "second")]
    unreadable = 'UPDATE tasks SET input_versions = \'{"dataset_uuid": "invalid"}\' WHERE id = $1'
    await control.pool.execute(unreadable, bad.task_id)
    granted, wrong = await control.claimer().claim([good, bad])
    assert isinstance(granted, Claimed)
    assert isinstance(wrong, ValueError)
    claim = control.claimer().batched()
    answers = await claim.settled([good, bad])
    assert isinstance(answers[0], Claimed), "it was answered; who asks again is answered again"


async def test_a_retry_of_a_task_is_another_lease_also_for_the_same_request(control: Control) -> None:
    """A delayed request gets the next attempt: the lease of the first one no longer counts."""
    chain = await deploy_chain(control)
    request = ClaimRequest(task_id=await a_task(control, chain), worker_id="w", claim_id=uuid4())
    (first,) = await control.claimer().claim([request])
    await expire(control, request.task_id)
    await retry_now(control, request.task_id)
    await control.pool.execute("UPDATE tasks SET woken_at = now() WHERE id = $1", request.task_id)
    (second,) = await control.claimer().claim([request])
    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert (first.attempt, second.attempt) == (1, 2)
    claims = decode(parse_token(first.capability_token).payload)
    with pytest.raises(LeaseLost):
        await control.completer()(completion(first), claims)


async def test_a_claim_of_an_unknown_task_creates_nothing(control: Control) -> None:
    (answer,) = await control.claimer().claim([ClaimRequest(task_id=uuid4(), worker_id="w")])
    assert answer == NotClaimed(reason="NotFound")
    assert await control.pool.fetchval("SELECT count(*) FROM tasks") == 0


async def test_a_completion_routes_its_event_to_one_task_per_dependent_job(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    await control.completer()(completion(task, events=[chain.event("first", cursor=7)]), claims)
    await drained(control)
    (second,) = await tasks_of(control, chain, "second")
    (delivery,) = await control.queue.receive("tasks-ecs_platform", max_messages=10, visibility=timedelta(minutes=1))
    assert str(second).encode() in delivery.body
    answer, _ = await claimed(control, second)
    assert answer.task.scope.cursor == 7
    assert [item.dataset_uuid for item in answer.task.inputs] == [chain.datasets["first"]]


async def test_the_same_completion_again_is_answered_as_before_and_counts_once(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    request = completion(task, events=[chain.event("first", start=0, end=99)])
    complete = control.completer()
    answers = await asyncio.gather(*(complete(request, claims) for _ in range(10)))
    assert len(set(map(str, answers))) == 1
    await drained(control)
    assert len(await tasks_of(control, chain, "second")) == 1


@pytest.mark.parametrize("outputs", [False, True])
async def test_another_completion_of_an_ended_attempt_is_a_conflict(control: Control, *, outputs: bool) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    complete = control.completer()
    await complete(completion(task), claims)
    event = chain.event("first", cursor=1)
    more = {"outputs": staged(control.objects, task, (0, 9))} if outputs else {"events": [event]}
    stored = "SELECT to_jsonb(t)::text, (SELECT count(*) FROM events) FROM tasks t WHERE id = $1"
    before = await control.pool.fetchrow(stored, task.task.task_id)
    with pytest.raises(Conflict):
        await complete(completion(task, **more), claims)
    with pytest.raises(Conflict):
        await complete(completion(task, status="Failed", error_message="no"), claims)
    assert await control.pool.fetchrow(stored, task.task.task_id) == before, "a refused completion changes nothing"


async def test_a_stale_attempt_cannot_heartbeat_emit_or_commit(control: Control) -> None:
    chain = await deploy_chain(control)
    old, old_claims = await claimed(control, await a_task(control, chain))
    await expire(control, old.task.task_id)
    await retry_now(control, old.task.task_id)
    new, _ = await claimed(control, old.task.task_id)
    assert new.attempt == 2
    fence = {"task_id": old.task.task_id, "attempt": 1, "lease_token": old.lease_token}
    with pytest.raises(LeaseLost):
        await control.renewer().batched(control.metrics)(Beat(HeartbeatRequest(**fence), old_claims))  # type: ignore[arg-type]
    with pytest.raises(LeaseLost):
        await accept_events(control, EventsRequest(**fence, events=[chain.event("first", cursor=1)]), old_claims)  # type: ignore[arg-type]
    outputs = staged(control.objects, old, (0, 9))
    for more in ({}, {"outputs": outputs}, {"status": "Failed", "error_message": "x"}):
        with pytest.raises(LeaseLost):
            await control.completer()(completion(old, **more), old_claims)
    assert await status(control, old.task.task_id) == "Running"
    assert await control.pool.fetchval("SELECT count(*) FROM events") == 0
    assert await control.pool.fetchval("SELECT count(*) FROM commits") == 0


FORGERIES: list[dict[str, object]] = [{"lease_token": uuid4()}, {"attempt": 2}]


@pytest.mark.parametrize("forged", FORGERIES)
async def test_a_reply_with_a_wrong_token_or_attempt_changes_nothing(
    control: Control, forged: dict[str, object]
) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    right = {"task_id": task.task.task_id, "attempt": task.attempt, "lease_token": task.lease_token}
    wrong: dict[str, Any] = {**right, **forged}
    with pytest.raises(LeaseLost):
        await control.renewer().batched(control.metrics)(Beat(HeartbeatRequest(**wrong), claims))
    with pytest.raises(LeaseLost):
        await accept_events(control, EventsRequest(**wrong, events=[chain.event("first", cursor=1)]), claims)
    ways: list[dict[str, Any]] = [{}, {"outputs": staged(control.objects, task, (0, 9))}]
    for more in ways:
        with pytest.raises(LeaseLost):
            await control.completer()(CompleteRequest(status="Completed", **wrong, **more), claims)
    row = await control.pool.fetchrow("SELECT status::text, last_heartbeat = started_at AS unheard FROM tasks")
    assert row is not None
    assert (row["status"], row["unheard"]) == ("Running", True)


async def test_a_late_reply_counts_while_no_newer_attempt_has_begun(control: Control) -> None:
    chain = await deploy_chain(control)
    for with_outputs in (False, True):
        task, claims = await claimed(control, await a_task(control, chain))
        more = {"outputs": staged(control.objects, task, (0, 9))} if with_outputs else {}
        await expire(control, task.task.task_id)
        assert await status(control, task.task.task_id) == "Failed"
        await control.completer()(completion(task, **more), claims)
        assert await status(control, task.task.task_id) == "Completed"
        late = "SELECT late FROM task_attempts WHERE task_id = $1"
        assert await control.pool.fetchval(late, task.task.task_id) is True


async def test_a_heartbeat_extends_the_lease_and_reports_a_cancel(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    fence = {"task_id": task.task.task_id, "attempt": 1, "lease_token": task.lease_token}
    beat = Beat(HeartbeatRequest(**fence, progress={"done": 1}), claims)  # type: ignore[arg-type]
    answer = await control.renewer().batched(control.metrics)(beat)
    assert answer.lease_expires_at > task.lease_expires_at
    assert not answer.canceled
    await control.pool.execute(
        "UPDATE tasks SET status = 'Canceled', cancel_reason = 'x', completed_at = now(), lease_expires_at = NULL"
    )
    assert (await control.renewer().batched(control.metrics)(beat)).canceled
    with pytest.raises(LeaseLost):
        await control.completer()(completion(task), claims)
    answered = await control.completer()(completion(task, status="Canceled"), claims)
    assert answered.status == "Canceled"


async def test_a_failure_waits_for_its_retry_and_the_last_one_is_final(control: Control) -> None:
    chain = await deploy_chain(control)
    task_id = await a_task(control, chain)
    for attempt in (1, 2, 3):
        task, claims = await claimed(control, task_id)
        assert task.attempt == attempt
        answer = await control.completer()(completion(task, status="Failed", error_message="boom"), claims)
        assert (answer.next_retry_at is None) == (attempt == 3)
        if attempt < 3:
            await retry_now(control, task_id)
    assert await status(control, task_id) == "Failed"
    assert await control.pool.fetchval("SELECT count(*) FROM task_attempts WHERE task_id = $1", task_id) == 3


async def test_a_failure_that_is_not_retryable_is_final_at_once(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    request = completion(task, status="Failed", error_message="bad config", retryable=False)
    assert (await control.completer()(request, claims)).next_retry_at is None


async def test_events_about_what_the_token_does_not_name_are_refused(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    with pytest.raises(Forbidden) as refused:
        await control.completer()(completion(task, events=[chain.event("second", cursor=1)]), claims)
    assert refused.value.where == "/events/0/dataset_uuid"
    with pytest.raises(InvalidRequest) as wrong:
        await control.completer()(completion(task, events=[chain.event("first", start=9, end=1)]), claims)
    assert wrong.value.where == "/events/0/start"


async def test_outputs_become_commits_and_the_latest_partition_is_current(control: Control) -> None:
    chain = await deploy_chain(control)
    for number, (start, end) in enumerate([(0, 99), (100, 199), (0, 199)], start=1):
        task, claims = await claimed(control, await a_task(control, chain))
        await control.completer()(completion(task, outputs=staged(control.objects, task, (start, end))), claims)
        head = "SELECT last_commit FROM dataset_heads WHERE dataset_uuid = $1"
        assert await control.pool.fetchval(head, chain.datasets["first"]) == number
    current = "SELECT partition_key FROM partition_versions WHERE commits @> $1::bigint ORDER BY 1"
    seen = [[row[0] for row in await control.pool.fetch(current, number)] for number in (1, 2, 3)]
    assert seen == [["0-99"], ["0-99", "100-199"], ["0-199"]]


async def test_another_schema_within_a_generation_is_refused_whole(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    await control.completer()(completion(task, outputs=staged(control.objects, task, (0, 9))), claims)
    task, claims = await claimed(control, await a_task(control, chain))
    other = staged(control.objects, task, (10, 19), columns=[ColumnEntry(name="block_number", type="string")])
    with pytest.raises(Conflict, match="schema"):
        await control.completer()(completion(task, outputs=other), claims)
    assert await control.pool.fetchval("SELECT count(*) FROM commits") == 1
    assert await status(control, task.task.task_id) == "Running"


async def test_a_recommitted_partition_runs_its_readers_again_and_a_repeated_event_does_not(control: Control) -> None:
    chain = await deploy_chain(control)
    for expected in (1, 2):
        task, claims = await claimed(control, await a_task(control, chain))
        outputs, events = staged(control.objects, task, (0, 99)), [chain.event("first", start=0, end=99)]
        await control.completer()(completion(task, outputs=outputs, events=events), claims)
        await drained(control)
        assert len(await tasks_of(control, chain, "second")) == expected
    task, claims = await claimed(control, await a_task(control, chain))
    await control.completer()(completion(task, events=[chain.event("first", start=0, end=99)]), claims)
    await drained(control)
    assert len(await tasks_of(control, chain, "second")) == 2


async def test_an_invalidation_makes_one_task_per_reader_over_exactly_its_range(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    body = InvalidationBody(
        dataset_uuid=chain.datasets["first"],
        dataset_version=chain.versions["first"],
        start=5,
        end=8,
        reason="reorg 0xab",
    )
    fence = {"task_id": task.task.task_id, "attempt": 1, "lease_token": task.lease_token}
    for _ in range(2):
        await accept_events(control, EventsRequest(**fence, invalidations=[body]), claims)  # type: ignore[arg-type]
    await drained(control)
    (again,) = await tasks_of(control, chain, "second")
    redo, redo_claims = await claimed(control, again)
    assert (redo.task.scope.start, redo.task.scope.end) == (5, 8)
    open_marks = "SELECT count(*) FROM data_invalidation_jobs WHERE processed_at IS NULL"
    assert await control.pool.fetchval(open_marks) == 1
    await control.completer()(completion(redo), redo_claims)
    assert await control.pool.fetchval(open_marks) == 0


async def test_an_event_of_an_old_generation_is_kept_and_not_routed(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    await control.pool.execute("DELETE FROM dag_current_versions")
    await control.completer()(completion(task, events=[chain.event("first", cursor=1)]), claims)
    await drained(control)
    assert await control.pool.fetchval("SELECT disposition::text FROM events") == "AuditOnly"
    assert await tasks_of(control, chain, "second") == []


async def test_no_more_tasks_of_a_job_are_woken_than_it_has_slots_and_each_end_gives_one_back(control: Control) -> None:
    chain = await deploy_chain(control, max_concurrency=2)
    task, claims = await claimed(control, await a_task(control, chain))
    events = [chain.event("first", cursor=n) for n in range(5)]
    await control.completer()(completion(task, events=events), claims)
    woken = "SELECT count(*) FROM tasks WHERE job_id = $1 AND woken_at IS NOT NULL AND status IN ('Queued', 'Running')"
    for left in (5, 4, 3, 2, 1):
        await drained(control)
        assert await control.pool.fetchval(woken, chain.jobs["second"]) == min(left, 2)
        ready = "SELECT id FROM tasks WHERE job_id = $1 AND status = 'Queued' AND woken_at IS NOT NULL LIMIT 1"
        task, claims = await claimed(control, await control.pool.fetchval(ready, chain.jobs["second"]))
        await control.completer()(completion(task), claims)
