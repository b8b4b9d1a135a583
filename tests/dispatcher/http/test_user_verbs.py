"""Answers to users about tasks, datasets and entries: true, whole, in pages, and never of another organisation."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain, drained, tasks_of
from tests.support.dispatcher.staged_files import staged
from tests.support.verbs import cancel_task, retry_task
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.show import list_datasets, show_dataset
from tracelake.dispatcher.outbox.list import list_outbox
from tracelake.dispatcher.outbox.retry import retry_outbox
from tracelake.dispatcher.tasks.list import list_tasks
from tracelake.dispatcher.tasks.show import show_task
from tracelake.dispatcher.why.explain import explain
from tracelake.domain.access.subjects import Role
from tracelake.errors import Conflict, InvalidRequest, NotFound
from tracelake.store.identity import User
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.user.outbox import OutboxQuery
from tracelake.wire.user.tasks import TasksQuery
from tracelake.wire.user.why import Explanation, WhyQuery

pytestmark = pytest.mark.anyio


def user_of(chain: Chain, role: Role = "admin", user: UUID | None = None) -> User:
    return User(user or chain.org.user, chain.org.id, "acme", None, role)


async def committed(control: Control, chain: Chain, job: str, task_id: UUID, *span: int) -> Claimed:
    """The task writes the range, commits it and says so."""
    start, end = span
    task, claims = await claimed(control, task_id)
    outputs, events = staged(control.objects, task, (start, end)), [chain.event(job, start=start, end=end)]
    done = completion(task, outputs=outputs, events=events)
    await control.completer()(done, claims)
    await drained(control)
    return task


async def failed(control: Control, task_id: UUID, *, retryable: bool) -> None:
    task, claims = await claimed(control, task_id)
    said = completion(task, status="Failed", error_message="the disk is full", retryable=retryable)
    await control.completer()(said, claims)


async def why(control: Control, chain: Chain, **query: object) -> Explanation:
    return await explain(control.pool, user_of(chain), WhyQuery(**query))  # type: ignore[arg-type]


async def rule(control: Control, chain: Chain, **query: object) -> str | None:
    found = await why(control, chain, **query)
    return None if found.stopped is None else found.stopped.rule


async def test_pages_of_tasks_hold_every_task_once_the_newest_first(control: Control) -> None:
    chain = await deploy_chain(control)
    made = [await a_task(control, chain) for _ in range(7)]
    seen: list[UUID] = []
    before: UUID | None = None
    while True:
        page = await list_tasks(control.pool, chain.org.id, TasksQuery(limit=3, before=before))
        seen += [item.id for item in page.tasks]
        before = page.next
        if before is None:
            break
    assert seen == list(reversed(made))


async def test_filters_of_a_task_list_narrow_it(control: Control) -> None:
    chain = await deploy_chain(control)
    first, other = await a_task(control, chain, "first"), await a_task(control, chain, "second")
    await claimed(control, other)

    async def ids(**filters: object) -> list[UUID]:
        query = TasksQuery(**filters)  # type: ignore[arg-type]
        return [row.id for row in (await list_tasks(control.pool, chain.org.id, query)).tasks]

    assert await ids(status="Queued") == [first]
    assert await ids(status="Running") == [other]
    assert await ids(job="second") == [other]
    assert await ids(dag="chain") == [other, first]
    assert await ids(dag="elsewhere") == []


async def test_a_task_is_shown_with_its_cause_its_attempts_and_what_it_read_and_committed(control: Control) -> None:
    chain = await deploy_chain(control)
    first = await a_task(control, chain)
    await committed(control, chain, "first", first, 0, 99)
    (second,) = await tasks_of(control, chain, "second")
    await committed(control, chain, "second", second, 0, 99)
    shown = await show_task(control.pool, chain.org.id, second)
    assert (shown.dag, shown.job, shown.status, shown.partitions) == ("chain", "second", "Completed", ["0-99"])
    assert shown.event is not None
    assert (shown.event.producer_task_id, shown.event.scope, shown.event.commit) == (first, "partition:0-99", 1)
    assert [(attempt.attempt, attempt.outcome) for attempt in shown.attempts] == [(1, "Completed")]
    assert [(item.dataset_uuid, item.commit) for item in shown.inputs] == [(chain.datasets["first"], 1)]
    assert [(commit.dataset_uuid, commit.commit, commit.rows) for commit in shown.commits] == [
        (chain.datasets["second"], 1, 100)
    ]


async def test_a_manual_retry_gives_a_failed_task_one_more_attempt_and_no_other_task(control: Control) -> None:
    chain = await deploy_chain(control)
    task = await a_task(control, chain)
    with pytest.raises(Conflict, match="Queued"):
        await retry_task(control, chain.org.id, task)
    await failed(control, task, retryable=False)
    assert (await retry_task(control, chain.org.id, task)).attempt == 2
    assert (await claimed(control, task))[0].attempt == 2


async def test_a_canceled_task_stays_canceled_and_a_completed_one_cannot_be(control: Control) -> None:
    chain = await deploy_chain(control)
    task, done = await a_task(control, chain), await a_task(control, chain)
    assert (await cancel_task(control, chain.org.id, task, "no longer needed")).changed
    assert not (await cancel_task(control, chain.org.id, task, "again")).changed
    assert (await show_task(control.pool, chain.org.id, task)).cancel_reason == "no longer needed"
    await committed(control, chain, "first", done, 0, 9)
    with pytest.raises(Conflict, match="Completed"):
        await cancel_task(control, chain.org.id, done, "too late")


async def test_nothing_of_another_organisation_is_seen_or_changed(control: Control) -> None:
    mine, theirs = await deploy_chain(control), await deploy_chain(control, slug="other")
    task = await a_task(control, theirs)
    await failed(control, task, retryable=False)
    dead = await dead_entry(control, theirs, task)
    org, me = mine.org.id, user_of(mine)
    assert (await list_tasks(control.pool, org, TasksQuery())).tasks == []
    assert (await list_outbox(control.pool, org, OutboxQuery())).rows == []
    assert (await retry_outbox(control.pool, control.after_commit.outbox, org, [dead])).retried == []
    theirs_set = set(theirs.datasets.values())
    assert not theirs_set & {dataset.dataset_uuid for dataset in (await list_datasets(control.pool, me)).datasets}
    with pytest.raises(NotFound):
        await show_dataset(control.pool, me, str(theirs.datasets["first"]))
    for query in (WhyQuery(task=task), WhyQuery(dataset=str(theirs.datasets["first"]), partition="0-9")):
        with pytest.raises(NotFound):
            await explain(control.pool, me, query)
    for verb in (
        show_task(control.pool, org, task),
        retry_task(control, org, task),
        cancel_task(control, org, task, "x"),
    ):
        with pytest.raises(NotFound):
            await verb


async def dead_entry(control: Control, chain: Chain, task: UUID) -> int:
    """The wake-up of a task, given up."""
    found: int = await control.pool.fetchval(
        "INSERT INTO outbox (org_id, kind, payload, status, attempts, last_error, processed_at) VALUES"
        " ($1, 'enqueue_task', $2, 'Failed', 8, 'no such queue', now()) RETURNING id",
        chain.org.id,
        {"task_id": str(task), "runtime": "ecs_platform"},
    )
    return found


async def test_a_dead_outbox_entry_is_listed_with_its_reason_and_retried_on_request(
    control: Control,
) -> None:
    chain = await deploy_chain(control)
    task = await a_task(control, chain)
    entry = await dead_entry(control, chain, task)
    assert await rule(control, chain, task=task) == "outbox_entry_failed"
    (row,) = (await list_outbox(control.pool, chain.org.id, OutboxQuery(status="Failed"))).rows
    assert (row.id, row.last_error, row.payload["task_id"]) == (entry, "no such queue", str(task))
    assert (await retry_outbox(control.pool, control.after_commit.outbox, chain.org.id, None)).retried == [entry]
    assert await rule(control, chain, task=task) == "waits_for_wakeup"
    await drained(control)
    assert await rule(control, chain, task=task) == "waits_for_worker"


async def test_a_dead_outbox_entry_that_was_created_again_is_not_retried(control: Control) -> None:
    chain = await deploy_chain(control)
    for status in ("Failed", "Failed", "Pending"):
        await control.pool.execute(
            "INSERT INTO outbox (org_id, kind, payload, status, last_error, processed_at, dedupe_key) VALUES"
            " ($1, 'enqueue_task', '{}', $2::text::outbox_status, 'x',"
            "  CASE WHEN $2::text = 'Failed' THEN now() END, 'same')",
            chain.org.id,
            status,
        )
    assert (await retry_outbox(control.pool, control.after_commit.outbox, chain.org.id, None)).retried == []
    await control.pool.execute("DELETE FROM outbox WHERE status = 'Pending'")
    assert len((await retry_outbox(control.pool, control.after_commit.outbox, chain.org.id, None)).retried) == 1


async def test_a_dataset_shows_its_generations_merged_ranges_and_last_commits(control: Control) -> None:
    chain = await deploy_chain(control)
    for start, end in ((0, 9), (10, 19), (40, 49)):
        await committed(control, chain, "first", await a_task(control, chain), start, end)
    shown = await show_dataset(control.pool, user_of(chain), str(chain.datasets["first"]))
    (generation,) = shown.generations
    assert generation.current
    assert (generation.ranges, generation.partitions, generation.rows) == ([(0, 19), (40, 49)], 3, 30)
    assert [commit.commit for commit in shown.commits] == [3, 2, 1]
    assert shown.last_commit == 3


async def test_a_dataset_for_certain_roles_is_not_found_by_users_without_one(control: Control) -> None:
    chain = await deploy_chain(control)
    await control.pool.execute(
        "UPDATE datasets SET name = 'secret_plans', visibility = 'roles', read_roles = '{role:finance}' WHERE id = $1",
        chain.datasets["first"],
    )
    reader = await control.pool.fetchval(
        "INSERT INTO users (org_id, external_id, role) VALUES ($1, 'test|reader', 'reader') RETURNING id", chain.org.id
    )
    me = user_of(chain, "reader", reader)
    with pytest.raises(NotFound):
        await show_dataset(control.pool, me, "secret_plans")
    assert (await list_datasets(control.pool, me)).datasets == []  # the others are not published
    await control.pool.execute(
        "WITH r AS (INSERT INTO org_roles (org_id, slug, name) VALUES ($1, 'finance', 'Finance') RETURNING id)"
        " INSERT INTO org_role_memberships (org_id, role_id, user_id) SELECT $1, id, $2 FROM r",
        chain.org.id,
        reader,
    )
    assert (await show_dataset(control.pool, me, "secret_plans")).name == "secret_plans"
    assert [row.name for row in (await list_datasets(control.pool, me)).datasets] == ["secret_plans"]


async def test_why_explains_the_whole_chain_of_a_committed_partition(control: Control) -> None:
    chain = await deploy_chain(control)
    await committed(control, chain, "first", await a_task(control, chain), 0, 99)
    (second,) = await tasks_of(control, chain, "second")
    await committed(control, chain, "second", second, 0, 99)
    explanation = await why(control, chain, dataset=str(chain.datasets["second"]), partition="0-99")
    assert explanation.stopped is None
    assert "commit 1" in explanation.verdict
    assert [step.kind for step in explanation.steps] == ["event", "rule", "task", "attempt", "commit"]
    assert explanation.steps == (await why(control, chain, task=second)).steps
    # A smaller range within it was made by the same commit.
    smaller = await why(control, chain, dataset=str(chain.datasets["second"]), partition="10-19")
    assert smaller.steps == explanation.steps


async def test_why_names_the_rule_that_holds_a_task(control: Control) -> None:
    chain = await deploy_chain(control)
    task = await a_task(control, chain)
    assert await rule(control, chain, task=task) == "waits_for_worker"
    running, _ = await claimed(control, task)
    assert await rule(control, chain, task=task) == "running"
    waiting = await a_task(control, chain)
    await failed(control, waiting, retryable=True)
    assert await rule(control, chain, task=waiting) == "waits_for_retry"
    dead = await a_task(control, chain)
    await failed(control, dead, retryable=False)
    explanation = await why(control, chain, task=dead)
    assert explanation.stopped is not None
    assert (explanation.stopped.rule, explanation.stopped.hint is not None) == ("failed_for_good", True)
    assert "the disk is full" in explanation.verdict
    await cancel_task(control, chain.org.id, running.task.task_id, "not today")
    explanation = await why(control, chain, task=task)
    assert explanation.stopped is not None
    assert explanation.stopped.rule == "canceled"
    assert "not today" in explanation.verdict


async def test_why_names_the_slot_that_a_task_waits_for_and_a_pause_does_not_stop_it(control: Control) -> None:
    chain = await deploy_chain(control, max_concurrency=1)
    await committed(control, chain, "first", await a_task(control, chain), 0, 9)
    await committed(control, chain, "first", await a_task(control, chain), 10, 19)
    first, other = await tasks_of(control, chain, "second")
    assert await rule(control, chain, task=first) == "waits_for_worker"
    explanation = await why(control, chain, task=other)
    assert explanation.stopped is not None
    assert explanation.stopped.rule == "waits_for_slot"
    assert "1 of 1" in explanation.stopped.sentence
    await control.pool.execute(
        "INSERT INTO pauses (org_id, job_id, priority, reason, cause_job_id, threshold, observed)"
        " VALUES ($1, $2, 'normal', 'depth', $3, 10, 11)",
        chain.org.id,
        chain.jobs["second"],
        chain.jobs["third"],
    )
    explanation = await why(control, chain, task=other)
    assert explanation.stopped is not None
    assert explanation.stopped.rule == "waits_for_slot"  # a paused job's own tasks are run


async def test_why_says_that_a_repeated_event_made_no_second_task(control: Control) -> None:
    chain = await deploy_chain(control)
    for _ in range(2):
        task, claims = await claimed(control, await a_task(control, chain))
        await control.completer()(completion(task, events=[chain.event("first", cursor=7)]), claims)
        await drained(control)
    (second,) = await tasks_of(control, chain, "second")
    explanation = await why(control, chain, task=second)
    assert [step.kind for step in explanation.steps] == ["event", "rule", "event", "task"]
    assert "dedupe key" in explanation.steps[2].sentence


async def test_why_names_the_rule_that_kept_a_partition_from_being_made(control: Control) -> None:
    chain = await deploy_chain(control)
    first, second = str(chain.datasets["first"]), str(chain.datasets["second"])
    assert await rule(control, chain, dataset=first, partition="0-9") == "source_has_not_made_it"
    assert await rule(control, chain, dataset=second, partition="0-9") == "no_event"

    task, claims = await claimed(control, await a_task(control, chain))
    without_wake_ups = replace(control, wake_ups=None)
    await without_wake_ups.completer()(completion(task, events=[chain.event("first", start=0, end=9)]), claims)
    assert await rule(control, chain, dataset=second, partition="0-9") == "not_routed_yet"
    dead = "UPDATE outbox SET status = $1::text::outbox_status, last_error = 'x', processed_at = {}"
    dead += " WHERE kind = 'route_event'"
    await control.pool.execute(dead.format("now()"), "Failed")
    assert await rule(control, chain, dataset=second, partition="0-9") == "outbox_entry_failed"
    await control.pool.execute(dead.format("NULL"), "Pending")
    await drained(control)
    assert await rule(control, chain, dataset=second, partition="0-9") == "waits_for_worker"

    (made,) = await tasks_of(control, chain, "second")
    task, claims = await claimed(control, made)
    await control.completer()(completion(task), claims)
    assert await rule(control, chain, dataset=second, partition="0-9") == "not_written"
    assert "it committed nothing" in (await why(control, chain, task=made)).verdict

    await control.pool.execute("DELETE FROM dag_current_versions")
    assert await rule(control, chain, dataset=second, partition="10-19") == "not_active"


async def test_a_task_for_something_else_does_not_explain_a_partition(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    await control.completer()(completion(task, events=[chain.event("first", cursor=7), chain.event("first")]), claims)
    await drained(control)
    assert len(await tasks_of(control, chain, "second")) == 2
    for partition in ("0-9", "today"):
        assert await rule(control, chain, dataset=str(chain.datasets["second"]), partition=partition) == "no_event"


async def test_why_says_that_events_of_an_old_generation_are_kept_for_the_record_only(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    version = await control.pool.fetchval("SELECT dag_version_id FROM dag_current_versions")
    await control.pool.execute("DELETE FROM dag_current_versions")
    await control.completer()(completion(task, events=[chain.event("first", partition_key="today")]), claims)
    await control.pool.execute("INSERT INTO dag_current_versions VALUES ($1, 'chain', $2)", chain.org.id, version)
    explanation = await why(control, chain, dataset=str(chain.datasets["second"]), partition="today")
    assert explanation.stopped is not None
    assert explanation.stopped.rule == "audit_only"
    assert "not the current generation" in explanation.verdict


async def test_why_refuses_a_query_about_nothing_or_about_two_subjects(control: Control) -> None:
    chain = await deploy_chain(control)
    for query in ({}, {"task": uuid4(), "dataset": "x"}, {"partition": "1-2"}):
        with pytest.raises(InvalidRequest):
            await why(control, chain, **query)
    for unknown in ({"task": uuid4()}, {"dataset": "x"}):
        with pytest.raises(NotFound):
            await why(control, chain, **unknown)
