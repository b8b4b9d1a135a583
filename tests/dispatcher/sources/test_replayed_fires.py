"""Changed sources of a release get the fires that the version before had, from the store: nothing is fired again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.dispatcher.control import PULL, WORKS, Org, an_org, control_for, deployed_and_active
from tests.support.dispatcher.releases import build, promoted, rolled_back, shown, started, state_of
from tests.support.dispatcher.run_tasks import claim_one, drain, settle
from tests.support.verbs import trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.releases.run_releases import RunReleases
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.user.backfills import GapsQuery

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL, "works": WORKS}
MILL = """
name: mill
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: {operator}, config: {{n: {n}}}, source: {{kind: manual}}}}
  - {{name: grind, operator: works, inputs: [{{from: {{job: ask}}}}]}}
"""
SERVED = """
SELECT d.producer_job_name AS job, array_agg(p.partition_key ORDER BY p.block_range) AS keys
  FROM datasets d
  JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
  JOIN partition_versions p ON p.dataset_version = s.dataset_version AND p.valid_to IS NULL
 WHERE d.org_id = $1
 GROUP BY 1
"""
FIRES = """
SELECT t.input_versions::text, count(*)
  FROM tasks t JOIN jobs j ON j.id = t.job_id JOIN dag_version_datasets s ON s.dag_version_id = j.dag_version_id
 WHERE j.name = 'ask' AND s.dataset_uuid = ANY (j.output_datasets) AND t.status = 'Completed'
 GROUP BY s.dataset_version, t.input_versions
HAVING count(*) > 1
"""


def mill(operator: str, n: int) -> str:
    return MILL.format(operator=operator, n=n)


async def fired(control: Control, org: Org, first: int) -> None:
    await trigger(control, org.id, "mill", "ask", start=first, end=first + 9, request_id=uuid4())


async def served(control: Control, org: Org) -> dict[str, Any]:
    return {row["job"]: row["keys"] for row in await control.pool.fetch(SERVED, org.id)}


async def expect(control: Control, org: Org, operator: str, *keys: str) -> None:
    """`pull` as a source has no rows of its own."""
    found = await served(control, org)
    assert found["grind"] == list(keys)
    assert found.get("ask") == (list(keys) if operator == "works" else None)
    assert (await list_gaps(control.pool, org.as_user, GapsQuery(of="mill"))).complete
    assert await control.pool.fetch(FIRES) == [], "no fire was processed twice in one generation"


async def begun(control: Control, operator: str) -> Org:
    org = await an_org(control.pool)
    await deployed_and_active(control, org, mill(operator, 1))
    for first in (0, 10):
        await fired(control, org, first)
    await settle(control)
    return org


@pytest.mark.parametrize("operator", ["works", "pull"])
async def test_a_changed_source_is_built_from_the_fires_of_the_former_one_and_so_after_a_rollback(
    control: Control, operator: str
) -> None:
    org = await begun(control, operator)
    release = await started(control, org, mill(operator, 2))
    await build(control)
    assert await state_of(control, org, release) == "Ready"
    await expect(control, org, operator, "0-9", "10-19")
    await fired(control, org, 20)
    await promoted(control, org, release)
    await build(control)
    await expect(control, org, operator, "0-9", "10-19", "20-29")
    await fired(control, org, 30)
    await settle(control)
    await rolled_back(control, org, release)
    await build(control)
    await expect(control, org, operator, "0-9", "10-19", "20-29", "30-39")
    again = await started(control, org, mill(operator, 2), when_ready=True)
    await build(control)
    assert await state_of(control, org, again) == "Serving"
    await expect(control, org, operator, "0-9", "10-19", "20-29", "30-39")


async def test_a_fire_that_runs_while_its_version_is_replaced_is_replayed(control: Control) -> None:
    org = await begun(control, "works")
    release = await started(control, org, mill("works", 2))
    await build(control)
    await fired(control, org, 20)
    await drain(control)
    assert await claim_one(control) is not None
    await promoted(control, org, release)
    await build(control)
    await expect(control, org, "works", "0-9", "10-19", "20-29")


async def test_a_release_whose_replayed_fires_failed_is_not_ready_and_says_so(control: Control) -> None:
    org = await begun(control, "works")
    release = await started(control, org, mill("works", 2))

    def fails(task: Claimed) -> bool:
        return task.task.job.name == "ask" and task.task.scope.start == 10

    await build(control, fails)
    detail = await shown(control, org, release)
    assert (detail.release.state, detail.release.message) == (
        "Building",
        "1 partition failed: `trace task retry` continues",
    )


async def test_an_unchanged_source_gets_no_task_of_a_release(control: Control) -> None:
    org = await begun(control, "works")
    text = mill("works", 1).replace("name: grind, operator: works,", "name: grind, operator: works, config: {n: 2},")
    release = await started(control, org, text)
    await build(control)
    asks = "SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'ask'"
    assert (await state_of(control, org, release), await control.pool.fetchval(asks)) == ("Ready", 2)


async def test_two_dispatchers_replay_each_fire_once(
    control: Control, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    org = await begun(control, "works")
    await started(control, org, mill("works", 2))
    async with control_for(state_db, queue_db, tmp_path, replica="two") as other:
        loops = [RunReleases(replica.pool, replica.after_commit, replica.runtime_specs) for replica in (control, other)]
        for _ in range(3):
            await control.pool.execute("UPDATE releases SET check_at = now()")
            await asyncio.gather(*(loop.once() for loop in loops))
    replayed = "SELECT count(*) FROM tasks WHERE dedupe_key LIKE 'replayed:%'"
    assert await control.pool.fetchval(replayed) == 2
