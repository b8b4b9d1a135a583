"""A version that is activated processes what it missed, once, whichever version ran before it."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, deployed_and_active
from tests.support.dispatcher.mill import READER, asked, variants
from tests.support.dispatcher.run_tasks import caught_up, drain, settle
from tests.support.verbs import activate_dag, deploy_dag, invalidate, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.deploy import Deployed

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

DAG, OTHER_GRIND, OTHER_BAKE = variants("pull", "flour: {job: grind}")
KINDS = "SELECT priority::text, history FROM tasks WHERE job_id = $1"


async def held(control: Control, job: str) -> list[str]:
    """The current partitions of the generation that is served of a job's dataset."""
    rows = await control.pool.fetch(
        "SELECT p.partition_key FROM datasets d"
        " JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name"
        " JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id"
        " JOIN partition_versions p ON p.dataset_version = s.dataset_version AND p.valid_to IS NULL"
        " WHERE d.producer_job_name = $1 ORDER BY p.block_range, 1",
        job,
    )
    return [row["partition_key"] for row in rows]


async def tasks(control: Control, done: Deployed, job: str) -> int:
    return int(await control.pool.fetchval("SELECT count(*) FROM tasks WHERE job_id = $1", done.jobs[job]))


async def activate(control: Control, org: Org, version: UUID) -> None:
    await activate_dag(control, org.id, "mill", version)


async def test_a_changed_job_processes_what_was_there_before_its_version(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9), (10, 19))
    await settle(control)
    assert await held(control, "bake") == ["0-9", "10-19"]
    changed = await deployed_and_active(control, org, OTHER_GRIND)
    assert await held(control, "bake") == []
    await settle(control)
    assert await held(control, "grind") == ["0-9", "10-19"]
    assert await held(control, "bake") == ["0-9", "10-19"]
    assert await tasks(control, changed, "grind") == 2


async def test_an_unchanged_job_does_nothing_twice(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9), (10, 19))
    await settle(control)
    changed = await deployed_and_active(control, org, OTHER_BAKE)
    assert await settle(control) == 2, "of `bake` only"
    assert await tasks(control, changed, "grind") == 0


async def test_a_former_version_continues_where_it_stood(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await settle(control)
    await deployed_and_active(control, org, OTHER_GRIND)
    await asked(control, org, (10, 19))
    await settle(control)
    await activate(control, org, first.dag_version_id)
    assert await held(control, "bake") == ["0-9"]
    assert await settle(control) == 2, "10-19 of `grind` and `bake`"
    assert await held(control, "bake") == ["0-9", "10-19"]


async def test_work_that_another_version_with_the_same_generation_has_done_counts(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    await deployed_and_active(control, org, OTHER_BAKE)
    await asked(control, org, (0, 9))
    await settle(control)
    await activate(control, org, first.dag_version_id)
    assert await settle(control) == 1, "`bake` of the first version; `grind` is shared"


async def test_a_task_that_was_canceled_with_its_version_is_made_again_when_it_returns(
    control: Control, org: Org
) -> None:
    first = await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await drain(control)  # `grind` has a task, which nobody runs
    for _ in range(2):
        await deployed_and_active(control, org, OTHER_GRIND)
        await activate(control, org, first.dag_version_id)
    await settle(control)
    assert await held(control, "bake") == ["0-9"]


async def test_a_new_reader_of_a_dataset_gets_tasks_for_what_is_there(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9), (10, 19))
    await settle(control)
    reader = await deployed_and_active(control, org, READER)
    assert await settle(control) == 2
    assert await tasks(control, reader, "sell") == 2


async def test_a_reader_in_another_dag_follows_there_and_back(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    reader = await deployed_and_active(control, org, READER)
    await asked(control, org, (0, 9))
    await settle(control)
    await deployed_and_active(control, org, OTHER_GRIND)
    await settle(control)
    assert await tasks(control, reader, "sell") == 2, "one for each generation"
    await activate(control, org, first.dag_version_id)
    await settle(control)
    assert await tasks(control, reader, "sell") == 3, "what it had made of the first generation was replaced"
    await caught_up(control)
    assert await tasks(control, reader, "sell") == 3


async def test_a_partition_that_was_replaced_while_a_version_was_away_is_processed_again(
    control: Control, org: Org
) -> None:
    first = await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await settle(control)
    await deployed_and_active(control, org, OTHER_BAKE)
    await settle(control)
    dataset = await control.pool.fetchval("SELECT id FROM datasets WHERE producer_job_name = 'ask'")
    span = {"start": 0, "end": 9, "reason": "reorg"}
    await invalidate(control, org.id, org.user, dataset, **span, request_id=uuid4())
    assert await settle(control) == 2
    await activate(control, org, first.dag_version_id)
    assert await settle(control) == 1, "`bake` reads the new commit of 0-9"
    read = await control.pool.fetchval(
        "SELECT p.commit_number FROM processed_inputs p JOIN jobs j ON j.lineage_id = p.lineage_id"
        " WHERE j.id = $1 AND partition_key = '0-9'",
        first.jobs["bake"],
    )
    assert read == 2


async def test_a_lost_task_is_found_by_the_next_pass(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9), (10, 19))
    await drain(control)
    await control.pool.execute("DELETE FROM tasks WHERE job_id = $1 AND partitions = '{10-19}'", done.jobs["grind"])
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    await settle(control)
    assert await held(control, "bake") == ["0-9", "10-19"]


async def test_a_label_is_caught_up(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await trigger(control, org.id, "mill", "ask", partition="monday", request_id=uuid4())
    await settle(control)
    await deployed_and_active(control, org, OTHER_BAKE)
    await settle(control)
    assert await held(control, "bake") == ["monday"]


async def test_failed_and_canceled_tasks_stay_as_they_are(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await settle(control, fails=lambda _: True)
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    assert await settle(control) == 0
    assert await tasks(control, done, "grind") == 1


async def test_deploys_that_are_not_activated_change_nothing(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await settle(control)
    await deploy_dag(control, org.id, org.user, OTHER_GRIND)
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    assert await settle(control) == 0


ALERTS = """
name: mill
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: grind, operator: pull, config: {n: 1}, inputs: [{from: {job: ask}}]}
  - {name: warn, operator: pull, inputs: [{from: {job: grind}}], outputs: [{dataset: alerts}]}
publish:
  alerts: {storage: postgres, write_mode: buffered, columns: {id: text}, unique_key: [id]}
"""
OTHER_ALERTS = ALERTS.replace("{n: 1}", "{n: 2}")


async def warned(control: Control, *, name: str = "warn") -> list[str]:
    rows = await control.pool.fetch(
        "SELECT t.partitions FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.name = $1 AND t.status = 'Completed' ORDER BY t.id",
        name,
    )
    return [row["partitions"][0] for row in rows]


async def test_no_alert_is_raised_twice_for_data_of_before(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, ALERTS)
    await asked(control, org, (0, 9))
    await settle(control)
    assert await warned(control) == ["0-9"]
    await deployed_and_active(control, org, OTHER_ALERTS)
    await settle(control)
    assert await held(control, "grind") == ["0-9"], "it was made again"
    await asked(control, org, (10, 19))
    await settle(control)
    await activate(control, org, first.dag_version_id)
    await settle(control)
    assert await held(control, "grind") == ["0-9", "10-19"]
    assert await warned(control) == ["0-9", "10-19"], "once for each, when it was new"


async def test_a_job_that_says_replay_repeats_its_effects(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, ALERTS)
    await asked(control, org, (0, 9))
    await settle(control)
    replaying = OTHER_ALERTS.replace("outputs: [{dataset: alerts}]", "outputs: [{dataset: alerts}], replay: true")
    await deployed_and_active(control, org, replaying)
    await settle(control)
    assert await warned(control) == ["0-9", "0-9"]


async def test_a_new_alert_starts_with_what_follows_its_activation(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, ALERTS)
    await asked(control, org, (0, 9))
    await settle(control)
    more = ALERTS.replace(
        "publish:",
        "  - {name: also, operator: pull, inputs: [{from: {job: grind}}], outputs: [{dataset: alerts}]}\npublish:",
    )
    await deployed_and_active(control, org, more)
    await asked(control, org, (10, 19))
    await settle(control)
    assert await warned(control, name="also") == ["10-19"]


async def test_work_that_catches_up_is_bulk_and_so_is_what_follows_from_it(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await settle(control)
    changed = await deployed_and_active(control, org, OTHER_GRIND)
    await settle(control)
    rows = await control.pool.fetch(
        "SELECT j.name, t.priority::text, t.history FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.dag_version_id = $1 ORDER BY 1",
        changed.dag_version_id,
    )
    assert [tuple(row) for row in rows] == [("bake", "bulk", True), ("grind", "bulk", True)]


async def test_a_job_that_makes_its_whole_output_anew_gets_one_task(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9), (10, 19), (20, 29))
    await settle(control)
    changed = await deploy_dag(control, org.id, org.user, OTHER_BAKE)
    await control.pool.execute("UPDATE jobs SET makes_whole = true WHERE id = $1", changed.jobs["bake"])
    await activate(control, org, changed.dag_version_id)
    assert await settle(control) == 1
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    assert await settle(control) == 0, "it has read everything"


async def test_an_invalidation_that_a_version_missed_is_processed_when_it_returns(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await settle(control)
    await deployed_and_active(control, org, OTHER_GRIND)
    await settle(control)
    dataset = await control.pool.fetchval("SELECT id FROM datasets WHERE producer_job_name = 'ask'")
    span = {"start": 0, "end": 9, "reason": "reorg"}
    await invalidate(control, org.id, org.user, dataset, **span, request_id=uuid4())
    assert await settle(control) == 2
    for _ in range(2):
        await activate(control, org, first.dag_version_id)
        ran = await settle(control)
        await deployed_and_active(control, org, OTHER_GRIND)
        assert await settle(control) == 0
    assert ran == 0, "the first return processed it in `grind` and `bake`"
    assert await tasks(control, first, "bake") == 2


async def test_new_data_that_is_compared_before_it_is_routed_counts_as_new(control: Control, org: Org) -> None:
    """Else the jobs behind it that have effects outside their own datasets would not run for it."""
    done = await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await caught_up(control)
    await drain(control)
    rows = await control.pool.fetch(KINDS, done.jobs["grind"])
    assert [(row["priority"], row["history"]) for row in rows] == [("normal", False)]


async def test_data_of_before_the_activation_is_history_also_where_it_comes_through_a_new_commit(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await settle(control)
    done = await deployed_and_active(control, org, OTHER_GRIND)
    await settle(control)
    for job in ("grind", "bake"):
        rows = await control.pool.fetch(KINDS, done.jobs[job])
        assert [(row["priority"], row["history"]) for row in rows] == [("bulk", True)], job
