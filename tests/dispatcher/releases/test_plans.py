"""The plan of a release says what will be built and why, and a plan that moved is refused."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.support.dispatcher.control import Org, an_org, deployed_and_active
from tests.support.dispatcher.mill_and_shop import MILL, SHOP, served
from tests.support.dispatcher.releases import (
    abandoned,
    build,
    plan,
    promoted,
    rolled_back,
    shown,
    start,
    started,
)
from tracelake.dispatcher.control import Control
from tracelake.errors import Conflict, InvalidDag, InvalidRequest, NotFound

pytestmark = pytest.mark.anyio


async def test_going_back_by_the_file_reuses_what_was_built(control: Control, org: Org) -> None:
    before = await served(control)
    await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    tasks = await control.pool.fetchval("SELECT count(*) FROM tasks")
    actions = {row.dataset: row.action for row in (await plan(control, org, MILL.format(1, 1))).datasets}
    assert actions == {"ask[0]": "carry on", "flour": "reuse", "bake[0]": "reuse", "bread": "reuse"}
    await started(control, org, MILL.format(1, 1), when_ready=True)
    await build(control)
    assert await served(control) == before
    assert await control.pool.fetchval("SELECT count(*) FROM tasks") == tasks


async def test_a_plan_says_for_each_dataset_what_happens_and_why(control: Control, org: Org) -> None:
    found = await plan(control, org, MILL.format(1, 2))
    rows = {row.dataset: (row.cause, row.action, row.partitions) for row in found.datasets}
    assert rows == {
        "ask[0]": ("metadata", "carry on", 0),
        "flour": ("metadata", "carry on", 0),
        "bake[0]": ("edited", "build", 2),
    }
    assert [(row.dag, row.cause) for row in found.dags] == [("mill", "edited")]
    wider = await plan(control, org, MILL.format(2, 1))
    causes = {row.dataset: (row.cause, row.action) for row in wider.datasets}
    assert causes["flour"] == ("edited", "build")
    assert causes["bake[0]"] == causes["bread"] == ("upstream", "build")
    assert [row.readers for row in wider.datasets if row.dataset == "flour"] == [["shop.sell"]]
    assert [(row.dag, row.cause) for row in wider.dags] == [("mill", "edited"), ("shop", "upstream")]


async def test_a_plan_says_how_much_a_new_job_and_those_behind_it_have_to_process(control: Control, org: Org) -> None:
    """Of what is there, in the same DAG and in another one; whole datasets are one task, of which nothing is known."""
    cafe = """
name: cafe
defaults: {runtime: ecs_platform}
jobs:
  - {name: brew, operator: pull, inputs: [{from: {dataset: bread}}]}
  - {name: pour, operator: pull, inputs: [{from: {job: brew}}]}
  - name: add
    operator: sql
    config: {query: SELECT count(*) AS n FROM brew, mode: full}
    inputs: [{from: {job: brew}}]
"""
    rows = {row.dataset: row for row in (await plan(control, org, cafe)).datasets}
    assert {name: (row.cause, row.partitions, row.ranges) for name, row in rows.items()} == {
        "brew[0]": ("added", 2, ["0-19"]),
        "pour[0]": ("added", 2, ["0-19"]),
        "add[0]": ("added", 0, []),
    }
    more = MILL.format(1, 1).replace(
        "publish:", "  - {name: sift, operator: pull, inputs: [{from: {job: bake}}]}\npublish:"
    )
    found = {row.dataset: row.partitions for row in (await plan(control, org, more)).datasets}
    assert found["sift[0]"] == 2


async def test_a_plan_estimates_requests_to_nodes_by_those_of_the_last_tasks(control: Control, org: Org) -> None:
    await control.pool.execute(
        "UPDATE tasks t SET node_requests = 6 FROM jobs j WHERE j.id = t.job_id AND j.name = 'bake'"
    )
    found = await plan(control, org, MILL.format(1, 2))
    assert {row.dataset: row.requests for row in found.datasets} == {"ask[0]": None, "flour": None, "bake[0]": 2 * 6}
    again = await plan(control, org, MILL.format(1, 2))
    await control.pool.execute("UPDATE tasks SET node_requests = 7 WHERE node_requests > 0")
    moved = await plan(control, org, MILL.format(1, 2))
    assert again.hash == moved.hash, "an estimate does not make it another plan"


async def test_a_plan_changes_nothing(control: Control, org: Org) -> None:
    counts = (
        "SELECT (SELECT count(*) FROM dag_versions), (SELECT count(*) FROM datasets), (SELECT count(*) FROM releases)"
    )
    before = await control.pool.fetchrow(counts)
    await plan(control, org, MILL.format(2, 1))
    assert await control.pool.fetchrow(counts) == before


async def test_a_plan_that_moved_is_refused(control: Control, org: Org) -> None:
    found = await plan(control, org, MILL.format(2, 1))
    assert (await plan(control, org, MILL.format(2, 1))).hash == found.hash
    await deployed_and_active(control, org, MILL.format(1, 2))
    with pytest.raises(Conflict, match="the plan has changed"):
        await start(control, org, MILL.format(2, 1), plan_hash=found.hash)
    assert await control.pool.fetchval("SELECT count(*) FROM releases") == 0


async def test_what_is_active_already_makes_no_release(control: Control, org: Org) -> None:
    answer = await start(control, org, MILL.format(1, 1), SHOP)
    assert (answer.release, answer.plan.changes) == (None, False)
    assert await control.pool.fetchval("SELECT count(*) FROM releases") == 0


async def test_bad_files_are_refused_and_nothing_is_stored(control: Control, org: Org) -> None:
    with pytest.raises(InvalidDag):
        await start(control, org, MILL.format(2, 1), "name: broken\njobs: 3\n")
    with pytest.raises(InvalidRequest, match="two of the files are of DAG 'mill'"):
        await start(control, org, MILL.format(2, 1), MILL.format(3, 1))
    with pytest.raises(NotFound, match="there is no release"):
        await promoted(control, org, uuid4())
    assert await control.pool.fetchval("SELECT count(*) FROM releases") == 0


async def test_a_release_of_another_organisation_does_not_exist(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, 1))
    other = await an_org(control.pool, "other")
    for verb in (promoted, rolled_back, abandoned, shown):
        with pytest.raises(NotFound):
            await verb(control, other, release)


async def test_an_edit_after_a_release_keeps_the_generations_that_it_does_not_touch(control: Control, org: Org) -> None:
    await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    before = await served(control)
    more = SHOP + "  cakes: {job: bake}\n"
    more = more.replace("publish:", "  - {name: bake, operator: pull, inputs: [{from: {dataset: flour}}]}\npublish:")
    rows = {row.dataset: row.action for row in (await plan(control, org, more)).datasets}
    assert rows == {"bread": "carry on", "cakes": "build"}
    await started(control, org, more, when_ready=True)
    await build(control)
    assert (await served(control))["sell"] == before["sell"]
