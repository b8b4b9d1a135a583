"""Lost events, entries and wake-ups are repaired, once; what was not lost or is no longer needed is left alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.control import PULL, an_org, deployed_and_active
from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain, drained, tasks_of
from tests.support.dispatcher.staged_files import staged
from tests.support.operators import registered
from tests.support.verbs import cancel_task, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.reconcile import Reconciler, Repairs
from tracelake.settings import LoopSettings
from tracelake.store.queries import queries
from tracelake.wire.task.outputs import InvalidationBody

pytestmark = pytest.mark.anyio

AT_ONCE = LoopSettings(reconcile_seconds=1e-6, reconcile_grace_seconds=0, lost_wake_up_seconds=0)
WITH_GRACE = AT_ONCE.model_copy(update={"lost_wake_up_seconds": 300.0})
QUEUE = "tasks-ecs_platform"


@pytest.fixture
def control(pair: tuple[Control, Control]) -> Control:
    return pair[0]


async def look(control: Control, settings: LoopSettings = WITH_GRACE) -> Repairs:
    return await Reconciler(
        control.pool, control.queue, control.runtimes, control.after_commit.outbox, settings
    ).repair()


async def done(control: Control, chain: Chain, *spans: tuple[int, int], **more: Any) -> UUID:
    """A task of the first job, completed with these ranges and that; its outbox entries are still pending."""
    task = await a_task(control, chain)
    claim, claims = await claimed(control, task)
    outputs = staged(control.objects, claim, *spans) if spans else []
    await replace(control, wake_ups=None).completer()(completion(claim, outputs=outputs, **more), claims)
    return task


async def complete_with_events(control: Control, chain: Chain) -> UUID:
    """Commits three partitions with their events, from which tasks are created and woken."""
    spans = [(0, 9), (10, 19), (20, 29)]
    events = [chain.event("first", start=start, end=end) for start, end in spans]
    return await done(control, chain, *spans, events=events)


async def messages(control: Control) -> list[str]:
    found = await control.queue.receive(QUEUE, max_messages=100, visibility=timedelta(minutes=5))
    await control.queue.ack(QUEUE, [delivery.receipt for delivery in found])
    return sorted(json.loads(delivery.body)["task_id"] for delivery in found)


async def test_nothing_lost_is_nothing_to_do(control: Control) -> None:
    chain = await deploy_chain(control)
    await complete_with_events(control, chain)
    for scope in ({"cursor": 7}, {"partition_key": "eu"}, {}):
        await done(control, chain, events=[chain.event("first", **scope)])
    body = InvalidationBody(
        dataset_uuid=chain.datasets["first"], dataset_version=chain.versions["first"], start=3, end=4, reason="reorg"
    )
    await done(control, chain, invalidations=[body])
    assert (await look(control)).total == 0  # pending is not lost
    await drained(control)
    rewritten = [chain.event("first", start=0, end=9)]
    await done(control, chain, (0, 9), events=rewritten)  # a key with its commit in it
    await drained(control)
    assert (await look(control)).total == 0
    assert len(await tasks_of(control, chain, "second")) == 8
    assert (
        await Reconciler(control.pool, control.queue, control.runtimes, control.after_commit.outbox, WITH_GRACE).once()
        == 0
    )


@pytest.mark.parametrize("when", ["before it was routed", "after it was routed"])
async def test_a_lost_outbox_entry_is_created_again_and_its_tasks_once(control: Control, when: str) -> None:
    chain = await deploy_chain(control)
    await complete_with_events(control, chain)
    if when.startswith("after"):
        await drained(control)
        await control.pool.execute("DELETE FROM tasks WHERE job_id = $1", chain.jobs["second"])
    await control.pool.execute("DELETE FROM outbox")
    assert await look(control) == Repairs(events=3)
    assert (await look(control)).total == 0  # its entry is pending now
    await drained(control)
    assert len(await tasks_of(control, chain, "second")) == 3
    assert (await look(control)).total == 0


async def test_a_commit_without_an_event_gets_one(control: Control) -> None:
    chain = await deploy_chain(control)
    silent = await done(control, chain, (0, 9), (10, 19))
    assert await look(control) == Repairs(missing_events=2)
    await drained(control)
    assert len(await tasks_of(control, chain, "second")) == 2
    rows = await control.pool.fetch("SELECT producer_task_id, scope, commit_number FROM events ORDER BY scope")
    assert [tuple(row) for row in rows] == [(silent, "partition:0-9", 1), (silent, "partition:10-19", 1)]
    assert (await look(control)).total == 0


async def test_a_commit_that_was_replaced_since_gets_no_event(control: Control) -> None:
    chain = await deploy_chain(control)
    await done(control, chain, (0, 9))
    await done(control, chain, (0, 9), events=[chain.event("first", start=0, end=9)])
    await drained(control)
    assert (await look(control)).total == 0
    assert len(await tasks_of(control, chain, "second")) == 1


@pytest.mark.parametrize("part", [{"start": 3, "end": 4}, {"partition_key": "eu"}], ids=["range", "label"])
@pytest.mark.parametrize("routed", [False, True])
async def test_a_lost_invalidation_is_done_by_its_readers(control: Control, routed: bool, part: dict[str, Any]) -> None:
    chain = await deploy_chain(control)
    body = InvalidationBody(
        dataset_uuid=chain.datasets["first"], dataset_version=chain.versions["first"], reason="reorg", **part
    )
    await done(control, chain, invalidations=[body])
    if routed:
        await drained(control)
        await control.pool.execute("DELETE FROM data_invalidation_jobs")
        await control.pool.execute("DELETE FROM tasks WHERE job_id = $1", chain.jobs["second"])
    await control.pool.execute("DELETE FROM outbox")
    assert await look(control) == Repairs(invalidations=1)
    await drained(control)
    assert len(await tasks_of(control, chain, "second")) == 1
    assert await control.pool.fetchval("SELECT count(*) FROM data_invalidation_jobs") == 1
    assert (await look(control)).total == 0


async def test_a_lost_message_is_sent_again_and_a_waiting_one_is_not(control: Control) -> None:
    chain = await deploy_chain(control)
    await complete_with_events(control, chain)
    await drained(control)
    await control.pool.execute("UPDATE tasks SET woken_at = woken_at - interval '6 min' WHERE status = 'Queued'")
    # The queue still holds messages that are younger than the wake-ups: those wake-ups must have been delivered.
    lost = await messages(control)
    assert len(lost) == 3
    assert await look(control) == Repairs(wake_ups=3)
    assert (await look(control)).total == 0  # the new entries are pending
    await drained(control)
    assert (await look(control)).total == 0  # and now sent
    assert await messages(control) == lost
    assert (await look(control)).total == 0  # just now: a worker may be about to claim


async def test_a_long_queue_is_not_taken_for_lost_messages(control: Control) -> None:
    chain = await deploy_chain(control)
    await complete_with_events(control, chain)
    await drained(control)
    depth = control.queue.depth

    class Slow:
        """The queue as it is, with messages that have waited for ten minutes."""

        async def depth(self, name: str) -> Any:
            return replace(await depth(name), oldest_age_seconds=600.0)

    await control.pool.execute("UPDATE tasks SET woken_at = woken_at - interval '12 min' WHERE status = 'Queued'")
    slow: Any = replace(control, queue=Slow())  # type: ignore[arg-type]
    assert (await look(slow)).total == 0
    await control.pool.execute("UPDATE tasks SET woken_at = woken_at - interval '4 min' WHERE status = 'Queued'")
    assert await look(slow) == Repairs(wake_ups=3)


async def test_two_concurrent_replicas_repair_once(pair: tuple[Control, Control]) -> None:
    first, second = pair
    chain = await deploy_chain(first)
    await complete_with_events(first, chain)
    await done(first, chain, (100, 109))
    await first.pool.execute("DELETE FROM outbox")
    found = await asyncio.gather(*(look(replica) for replica in (first, second) * 4))
    await asyncio.gather(drained(first), drained(second))
    assert sum(repairs.total for repairs in found) == 4
    assert len(await tasks_of(first, chain, "second")) == 4
    beat = LoopSettings(reconcile_seconds=3600, reconcile_grace_seconds=0)
    await first.pool.execute("DELETE FROM outbox")
    await first.pool.execute("DELETE FROM tasks WHERE job_id = $1", chain.jobs["second"])
    assert [(await look(replica, beat)).total for replica in (first, second)] == [0, 0]  # the beat is one for both


async def test_canceled_and_failed_work_is_not_revived(control: Control) -> None:
    chain = await deploy_chain(control)
    await complete_with_events(control, chain)
    await drained(control)
    canceled, failed, _ = await tasks_of(control, chain, "second")
    await cancel_task(control, chain.org.id, canceled, "canceled")
    claim, claims = await claimed(control, failed)
    await control.completer()(completion(claim, status="Failed", error_message="no", retryable=False), claims)
    await control.pool.execute("UPDATE tasks SET woken_at = woken_at - interval '1 h' WHERE status <> 'Queued'")
    await control.pool.execute("DELETE FROM outbox")
    await messages(control)
    assert (await look(control)).total == 0
    assert len(await tasks_of(control, chain, "second")) == 3


DAGS = """
name: {name}
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: work, operator: pull, config: {{n: {n}}}, inputs: [{{from: {{dataset: numbers}}}}]}}
"""
COUNTER = """
name: counter
defaults: {runtime: ecs_platform}
jobs: [{name: count, operator: noop, runtime: dispatcher, source: {kind: manual}}]
publish: {numbers: {job: count}}
"""


async def jobs_with_tasks(control: Control) -> list[tuple[str, str]]:
    rows = await control.pool.fetch(
        "SELECT j.dag_name, t.status::text FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.name = 'work' ORDER BY 1, 2"
    )
    return [tuple(row) for row in rows]


async def test_only_readers_that_were_active_at_the_time_get_the_lost_event(control: Control) -> None:
    with registered(pull=PULL):
        org = await an_org(control.pool)
        await deployed_and_active(control, org, COUNTER)
        await deployed_and_active(control, org, DAGS.format(name="old", n=1))
        await trigger(control, org.id, "counter", "count", start=0, end=9, request_id=uuid4())
        await drained(control)
        await deployed_and_active(control, org, DAGS.format(name="new", n=1))
        assert (await look(control)).total == 0  # a new reader gets later events, not earlier ones
        await control.pool.execute("DELETE FROM tasks WHERE dedupe_key LIKE 'partition%'")
        assert await look(control) == Repairs(events=1)
        await drained(control)
        assert await jobs_with_tasks(control) == [("old", "Queued")]
        assert (await look(control)).total == 0  # nor from the second time on
        # The next version of the reader is another job: what the former one left behind is not its own.
        await deployed_and_active(control, org, DAGS.format(name="old", n=2))
        await control.pool.execute("UPDATE tasks SET woken_at = woken_at - interval '1 h'")
        await messages(control)
        assert (await look(control)).total == 0
        assert await jobs_with_tasks(control) == [("old", "Canceled")]


async def test_an_old_generation_is_left_alone(control: Control) -> None:
    chain = await deploy_chain(control)
    await complete_with_events(control, chain)
    await drained(control)
    await control.pool.execute("DELETE FROM tasks WHERE job_id = $1", chain.jobs["second"])
    other = await control.pool.fetchval(
        "INSERT INTO dataset_versions (org_id, dataset_uuid, storage_location, config_hash)"
        " VALUES ($1, $2, 's3://x/', 'other') RETURNING id",
        chain.org.id,
        chain.datasets["first"],
    )
    await control.pool.execute(
        "UPDATE dag_version_datasets SET dataset_version = $1 WHERE dataset_uuid = $2", other, chain.datasets["first"]
    )
    assert (await look(control)).total == 0


async def test_the_past_is_checked_slice_by_slice(control: Control) -> None:
    chain = await deploy_chain(control)
    await control.pool.execute("UPDATE dag_current_versions SET updated_at = now() - interval '10 h'")
    await control.pool.execute(  # the test writes the past: as it was, versions never change
        "INSERT INTO dag_versions (org_id, dag_name, yaml_hash, yaml, created_at)"
        " VALUES ($1, 'first_of_all', 'h', 'x', now() - interval '9 h')",
        chain.org.id,
    )
    await complete_with_events(control, chain)
    await drained(control)
    await control.pool.execute(
        "UPDATE events SET created_at = now() - interval '5 h', routed_at = now() - interval '5 h'"
    )
    await control.pool.execute("DELETE FROM tasks WHERE job_id = $1", chain.jobs["second"])
    looks = [(await look(control)).total for _ in range(12)]
    assert looks.count(3) == 1
    assert sum(looks) == 3
    assert 4 <= looks.index(3) <= 7  # a beat looks at an hour, and begins at the beginning


async def test_a_beat_reads_its_hour_and_not_all_of_history(control: Control) -> None:
    chain = await deploy_chain(control)
    producer = await done(control, chain)
    await control.pool.execute(
        "INSERT INTO events (org_id, kind, producer_attempt, producer_run_id, producer_task_id, dataset_uuid,"
        " dataset_version, scope, cursor_value, created_at, routed_at)"
        " SELECT $1, 'cursor', 1, $2, $2, $3, $4, 'cursor:' || n, n, at, at FROM generate_series(1, 40000) AS n,"
        " LATERAL (SELECT now() - interval '100 h' + n * interval '9 s') AS made (at)",
        chain.org.id,
        producer,
        chain.datasets["first"],
        chain.versions["first"],
    )
    await control.pool.execute("VACUUM ANALYZE events")
    explain = "EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF, SUMMARY OFF) " + queries("reconcile")["route_lost_events"]
    start = await control.pool.fetchval("SELECT now() - interval '40 h'")
    plan = await control.pool.fetchval(explain, start, start + timedelta(hours=1))
    nodes = list(walk(json.loads(plan)[0]["Plan"]))
    # By time; or by dataset and time, which comes to the same here, where all events are of one dataset.
    assert {node.get("Index Name") for node in nodes} & {"idx_events_made", "idx_events_dataset"}
    read = sum(
        node["Actual Rows"] + node.get("Rows Removed by Index Recheck", 0) + node.get("Rows Removed by Filter", 0)
        for node in nodes
        if node.get("Relation Name") == "events"
    )
    assert 400 <= read < 40_000 / 8


def walk(node: dict[str, Any]) -> Any:
    yield node
    for inner in node.get("Plans", []):
        yield from walk(inner)
