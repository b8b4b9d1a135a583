"""Declarations of buffered datasets: what a deploy writes, what may change later, and what is refused and why."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.dispatcher.control import PULL, Org, deployed_and_active, run_here
from tests.support.verbs import activate_dag, deploy_dag
from tracelake.dispatcher.control import Control
from tracelake.domain.dag.model import JobOutput
from tracelake.domain.ids import JobName
from tracelake.errors import Conflict, InvalidDag

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

DAG = """
name: watch
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: one, operator: pull, inputs: [{from: {job: ask}}], outputs: [{dataset: alerts}]}
  - {name: two, operator: pull, inputs: [{from: {job: ask}}], outputs: [found, {dataset: alerts}]}
  - {name: after, operator: pull, inputs: [{from: {dataset: alerts}}]}
publish:
  alerts:
    storage: postgres
    write_mode: buffered
    columns: {id: text, level: {type: integer, nullable: false}, note: text}
    unique_key: [id]
"""
MORE = DAG.replace("note: text}", "note: text, seen: timestamp}").replace("[id]", "[id]\n    indexes: [[level]]")


async def test_all_writers_share_one_dataset_that_belongs_to_none_of_them(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, DAG)
    first, second = (done.datasets[JobOutput(JobName(job), index)] for job, index in (("one", 0), ("two", 1)))
    assert first == second
    row = await control.pool.fetchrow(
        "SELECT d.name, d.producer_job_name AS job, d.storage ->> 'kind' AS kind, v.storage_location AS place"
        " FROM datasets d JOIN dataset_versions v ON v.dataset_uuid = d.id WHERE d.id = $1",
        first,
    )
    assert row is not None
    assert (row["name"], row["job"], row["kind"]) == ("alerts", None, "buffered")
    assert row["place"].startswith("postgres_table:buffered.b_")
    read = await control.pool.fetchval("SELECT input_datasets FROM jobs WHERE name = 'after'")
    assert read == [first]


async def test_the_sink_is_notified_of_a_table_when_it_is_declared_or_widened_and_not_again(
    control: Control, org: Org
) -> None:
    for text, messages in ((DAG, 1), (DAG, 1), (MORE, 2), (DAG, 2)):
        await deployed_and_active(control, org, text)
        await run_here(control)
        assert (await control.queue.depth("buffer")).ready == messages
    declaration = await control.pool.fetchval("SELECT declaration::text FROM buffered_datasets")
    assert [column["name"] for column in msgspec.json.decode(declaration)["columns"]] == ["id", "level", "note", "seen"]


async def test_a_changed_writer_and_an_added_column_leave_the_generation_as_it_is(control: Control, org: Org) -> None:
    sql = (
        "SELECT p.dataset_version FROM dag_current_versions c JOIN dag_version_datasets p"
        " ON p.dag_version_id = c.dag_version_id JOIN datasets d ON d.id = p.dataset_uuid WHERE d.name = 'alerts'"
    )
    found = set()
    for text in (DAG, MORE, MORE.replace("name: one, operator: pull,", "name: one, operator: pull, config: {a: 1},")):
        await deployed_and_active(control, org, text)
        found.add(await control.pool.fetchval(sql))
    assert len(found) == 1


REFUSED = {
    "removed": ("note: text}", "}", "columns", "'note' would be removed"),
    "retyped": ("note: text}", "note: json}", "columns.note", "from text to json"),
    "made not null": ("note: text}", "note: {type: text, nullable: false}}", "columns.note", "become not nullable"),
    "made nullable": ("nullable: false", "nullable: true", "columns.level", "become nullable"),
    "new and not null": ("note: text}", "note: text, x: {type: text, nullable: false}}", "columns.x", "is new and not"),
    "another key": ("unique_key: [id]", "unique_key: [id, level]", "unique_key", "(id) to (id, level)"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_any_other_change_is_refused_at_its_place_with_the_reason(control: Control, org: Org, name: str) -> None:
    before, after, where, said = REFUSED[name]
    await deployed_and_active(control, org, DAG)
    with pytest.raises(InvalidDag) as raised:
        await deploy_dag(control, org.id, org.user, DAG.replace(before, after))
    (problem,) = raised.value.problems
    assert (problem.code, problem.field.startswith(f"publish.alerts.{where}")) == ("incompatible_change", True)
    assert said in problem.reason
    assert problem.suggestion


async def test_an_older_version_serves_again_and_two_that_contradict_each_other_do_not(
    control: Control, org: Org
) -> None:
    rival = DAG.replace("note: text}", "note: text, seen: text}")
    first = await deploy_dag(control, org.id, org.user, DAG)
    contradicting = await deploy_dag(control, org.id, org.user, rival)
    second = await deployed_and_active(control, org, MORE)
    with pytest.raises(Conflict, match="from timestamp to text"):
        await activate_dag(control, org.id, "watch", contradicting.dag_version_id)
    assert (await activate_dag(control, org.id, "watch", first.dag_version_id)).former == second.dag_version_id


async def test_a_dataset_declared_elsewhere_is_read_by_its_name(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    reader = """
name: reader
jobs:
  - {name: read, operator: pull, runtime: ecs_platform, inputs: [{from: {dataset: alerts}, where: "level > 3"}]}
"""
    await deployed_and_active(control, org, reader)
    sql = (
        "SELECT count(*) FROM job_inputs i JOIN datasets d ON d.id = i.dataset_uuid WHERE d.name = 'alerts' AND i.live"
    )
    assert await control.pool.fetchval(sql) == 2
