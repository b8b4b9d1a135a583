"""An update of a whole dataset, or a cursor, is one task of a PerUpdate job, and one a partition of a PerPartition."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, deployed_and_active
from tests.support.dispatcher.job_chain import claimed, completion
from tests.support.dispatcher.run_tasks import caught_up, drain, run_one, settle
from tests.support.dispatcher.staged_files import Partition, staged
from tests.support.verbs import activate_dag, pause_job, resume_job, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.deploy import Deployed
from tracelake.dispatcher.flow.apply_pressure import ApplyPressure
from tracelake.settings import FlowSettings
from tracelake.store.queries import queries
from tracelake.wire.task.outputs import EventBody

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

DAG = """
name: mill
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: grind, operator: pull, inputs: [{from: {job: ask}}]}
  - {name: bake, operator: pull, execution_strategy: PerPartition, inputs: [{from: {job: grind}}]}
  - {name: tell, operator: pull, execution_strategy: PerUpdate, inputs: [{from: {job: grind}}]}
"""
OTHER_BAKE = DAG.replace("bake, operator: pull", "bake, operator: pull, config: {n: 2}")

GRIND = "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'grind' AND t.status = 'Queued'"


async def ground(control: Control, org: Org, *partitions: Partition, cursor: int | None = None) -> None:
    """A task of `grind` commits these partitions, and sends one event about all of them."""
    await trigger(control, org.id, "mill", "ask", start=0, end=9, request_id=uuid4())
    await drain(control)
    task, claims = await claimed(control, await control.pool.fetchval(GRIND))
    bodies = staged(control.objects, task, *partitions)
    output = task.task.outputs[0]
    event = EventBody(dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, cursor=cursor)
    await control.completer()(completion(task, outputs=bodies, events=[event]), claims)
    await control.pool.execute("UPDATE tasks SET dedupe_key = id::text WHERE id = $1", task.task.task_id)


async def scopes(control: Control, done: Deployed, job: str) -> list[str]:
    """The partition, cursor or `all` of each task of a job, in the order of their creation."""
    rows = await control.pool.fetch(
        "SELECT coalesce(partitions[1], 'cursor ' || (input_versions ->> 'cursor'), 'all') AS scope FROM tasks"
        " WHERE job_id = $1 ORDER BY id",
        done.jobs[job],
    )
    return [row["scope"] for row in rows]


async def run_all(control: Control, done: Deployed, job: str) -> None:
    queued = "SELECT id FROM tasks WHERE job_id = $1 AND status = 'Queued'"
    for row in await control.pool.fetch(queued, done.jobs[job]):
        assert await run_one(control, row["id"])


@pytest.mark.parametrize(("cursor", "label"), [(None, "all"), (19, "cursor 19")])
async def test_each_changed_partition_is_a_task_and_each_update_is_one(
    control: Control, org: Org, cursor: int | None, label: str
) -> None:
    done = await deployed_and_active(control, org, DAG)
    await ground(control, org, (0, 9), (10, 19), cursor=cursor)
    await caught_up(control)
    assert await scopes(control, done, "bake") == ["0-9", "10-19"]
    assert await scopes(control, done, "tell") == [label]


async def test_only_partitions_that_changed_since_the_last_update_are_tasks(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, DAG)
    await ground(control, org, (0, 9), (10, 19))
    await caught_up(control)
    await run_all(control, done, "bake")
    await run_all(control, done, "tell")
    await ground(control, org, (10, 19), (20, 29))
    await drain(control)
    await caught_up(control)
    assert await scopes(control, done, "bake") == ["0-9", "10-19", "10-19", "20-29"]
    assert await scopes(control, done, "tell") == ["all", "all"]


async def test_routing_an_update_twice_and_catching_up_creates_no_task_twice(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, DAG)
    await ground(control, org, (0, 9), (10, 19))
    await control.pool.execute(
        "INSERT INTO outbox (org_id, kind, payload)"
        " SELECT org_id, 'route_event', jsonb_build_object('event_id', id) FROM events WHERE kind = 'update'"
    )
    await drain(control)
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    await caught_up(control)
    await activate_dag(control, org.id, "mill", done.dag_version_id)
    await caught_up(control)
    assert await scopes(control, done, "bake") == ["0-9", "10-19"]


async def test_an_update_while_a_pass_is_under_way_starts_another_pass(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, DAG)
    await ground(control, org, (0, 9))
    await caught_up(control)
    await control.pool.execute(
        "UPDATE catch_ups SET after_start = 50, due_at = now() WHERE job_id = $1", done.jobs["bake"]
    )
    await ground(control, org, (20, 29))  # behind the place that the pass has reached
    await caught_up(control)
    assert await scopes(control, done, "bake") == ["0-9", "20-29"]


async def test_a_changed_job_catches_up_by_partition_too(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await ground(control, org, (0, 9), (10, 19))
    await settle(control)
    changed = await deployed_and_active(control, org, OTHER_BAKE)
    await settle(control)
    assert await scopes(control, changed, "bake") == ["0-9", "10-19"]


async def test_an_update_of_a_dataset_without_partitions_is_one_task(control: Control, org: Org) -> None:
    text = DAG.replace(
        "bake, operator: pull, execution_strategy: PerPartition, inputs: [{from: {job: grind}}]",
        "bake, operator: pull, execution_strategy: PerPartition, inputs: [{from: {job: ask}}]",
    )
    done = await deployed_and_active(control, org, text)
    await trigger(control, org.id, "mill", "ask", cursor=5, request_id=uuid4())
    await drain(control)
    assert await scopes(control, done, "bake") == ["cursor 5"]


async def test_an_update_that_was_held_for_a_paused_job_becomes_a_task_for_each_partition(
    control: Control, org: Org
) -> None:
    done = await deployed_and_active(control, org, DAG)
    await pause_job(control, org.as_user, "mill", "bake")
    await ground(control, org, (0, 9), (10, 19))
    await caught_up(control)
    assert await scopes(control, done, "bake") == []
    await resume_job(control, org.as_user, "mill", "bake")
    await ApplyPressure(control.pool, control.after_commit, FlowSettings()).once()
    await caught_up(control)
    assert await scopes(control, done, "bake") == ["0-9", "10-19"]


async def test_a_job_with_effects_elsewhere_gets_tasks_for_new_partitions_and_none_for_old_ones(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    await ground(control, org, (0, 9))
    await settle(control)
    declared = "publish: {notices: {storage: postgres, write_mode: buffered, columns: {id: text}, unique_key: [id]}}\n"
    text = DAG.replace("PerPartition, ", "PerPartition, outputs: [{dataset: notices}], ") + declared
    done = await deployed_and_active(control, org, text)
    await ground(control, org, (10, 19))
    await caught_up(control)
    assert await scopes(control, done, "bake") == ["10-19"]


async def test_the_reconciler_finds_nothing_missing(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, DAG)
    await ground(control, org, (0, 9))
    await caught_up(control)
    period = await control.pool.fetchrow("SELECT now() - interval '1 h', now() + interval '1 h'")
    assert period is not None
    lost = await control.pool.fetchval(queries("reconcile")["route_lost_events"], *period)
    assert (lost, await scopes(control, done, "bake")) == (0, ["0-9"])
