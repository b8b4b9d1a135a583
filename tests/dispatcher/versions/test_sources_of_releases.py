"""A changed always-on source runs beside that of the active version while its release is built."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, deployed_and_active
from tests.support.dispatcher.releases import abandoned, build, plan, promoted, rolled_back, shown, started, state_of
from tests.support.dispatcher.run_tasks import settle
from tests.support.dispatcher.sources import emit, end, must_stop
from tests.support.dispatcher.sources import settle as settle_sources
from tests.support.operators import registered
from tracelake.dispatcher.control import Control
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest
from tracelake.wire.task.outputs import EventBody, InvalidationBody

pytestmark = pytest.mark.anyio

FEED = """
name: feed
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: follow, operator: pull, config: {{n: {0}}}, source: {{kind: always_on}}}}
  - {{name: work, operator: pull, config: {{n: {1}}}, inputs: [{{from: {{job: follow}}}}]}}
publish:
  result: {{job: work}}
"""
SERVED = """
SELECT array(SELECT p.partition_key FROM partition_versions p
              WHERE p.dataset_version = s.dataset_version AND p.valid_to IS NULL ORDER BY 1) AS keys
  FROM datasets d
  JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
 WHERE d.name = 'result'
"""
RUNS = "SELECT s.task_id, j.config ->> 'n' AS n FROM sources s JOIN jobs j ON j.id = s.job_id WHERE s.state = 'Running'"
LATER = "UPDATE events SET created_at = created_at - interval '1 minute'"
INVALIDATED = """
SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE t.invalidation_id IS NOT NULL AND t.status = 'Completed' AND j.dag_version_id = $1
"""


@pytest.fixture(autouse=True)
def pulling() -> Iterator[None]:
    with registered(pull=PULL):
        yield


@pytest.fixture
async def org(control: Control) -> Org:
    made = await an_org(control.pool)
    await deployed_and_active(control, made, FEED.format(1, 1))
    return made


async def runs(control: Control) -> dict[str, UUID]:
    """The tasks of the sources that run, by their config."""
    await settle_sources(control)
    return {row["n"]: row["task_id"] for row in await control.pool.fetch(RUNS)}


async def run_of(control: Control, n: int) -> Claimed:
    [found] = await control.claimer().claim([ClaimRequest(task_id=(await runs(control))[str(n)], worker_id="w")])
    assert isinstance(found, Claimed)
    return found


async def announce(control: Control, source: Claimed, first: int) -> None:
    [output] = source.task.outputs
    named = {"dataset_uuid": output.dataset_uuid, "dataset_version": output.dataset_version}
    event = EventBody(**named, partition_key=f"{first}-{first + 9}", start=first, end=first + 9)  # type: ignore[arg-type]
    await emit(control, source, events=[event])


async def served(control: Control) -> list[str]:
    return list(await control.pool.fetchval(SERVED))


async def test_it_runs_beside_the_active_one_and_its_release_is_ready_when_it_has_come_as_far(
    control: Control, org: Org
) -> None:
    old = await run_of(control, 1)
    for first in (0, 10):
        await announce(control, old, first)
    await settle(control)
    await control.pool.execute(LATER)
    release = await started(control, org, FEED.format(2, 1))
    assert set(await runs(control)) == {"1", "2"}
    new = await run_of(control, 2)
    assert not await must_stop(control, old)
    await build(control)
    detail = await shown(control, org, release)
    assert detail.release.message == "source feed.follow has reached nothing yet of 19"
    await announce(control, new, 0)
    await build(control)
    detail = await shown(control, org, release)
    assert (detail.release.state, detail.open_tasks) == ("Building", 0)
    assert detail.release.message == "source feed.follow has reached 9 of 19"
    await announce(control, new, 10)
    await build(control)
    assert await state_of(control, org, release) == "Ready"
    await promoted(control, org, release)
    assert await served(control) == ["0-9", "10-19"]
    assert await must_stop(control, old)
    assert not await must_stop(control, new)


async def test_what_both_announce_during_the_build_is_processed_by_both_versions(control: Control, org: Org) -> None:
    old = await run_of(control, 1)
    release = await started(control, org, FEED.format(2, 1))
    new = await run_of(control, 2)
    for first in (0, 10):
        await announce(control, old, first)
        await announce(control, new, first)
        await build(control)
    assert await served(control) == ["0-9", "10-19"]
    await announce(control, new, 20)
    await build(control)
    assert await served(control) == ["0-9", "10-19"]
    await promoted(control, org, release)
    assert await served(control) == ["0-9", "10-19", "20-29"]
    await announce(control, new, 30)
    await settle(control)
    assert await served(control) == ["0-9", "10-19", "20-29", "30-39"]


async def test_after_a_rollback_the_former_one_continues_and_the_other_stops(control: Control, org: Org) -> None:
    old = await run_of(control, 1)
    await announce(control, old, 0)
    release = await started(control, org, FEED.format(2, 1))
    new = await run_of(control, 2)
    await announce(control, new, 0)
    await build(control)
    await promoted(control, org, release)
    await end(control, old, state={"at": 9})
    assert set(await runs(control)) == {"2"}
    await rolled_back(control, org, release)
    assert await must_stop(control, new)
    await end(control, new)
    assert set(await runs(control)) == {"1"}
    again = await run_of(control, 1)
    assert again.task.state == {"at": 9}
    await announce(control, again, 10)
    await settle(control)
    assert await served(control) == ["0-9", "10-19"]


@pytest.mark.parametrize("how", ["abandoned", "replaced", "overtaken"])
async def test_it_stops_when_its_release_is_abandoned(control: Control, org: Org, how: str) -> None:
    await run_of(control, 1)
    release = await started(control, org, FEED.format(2, 1))
    new = await run_of(control, 2)
    if how == "abandoned":
        await abandoned(control, org, release)
    elif how == "replaced":
        await started(control, org, FEED.format(1, 2))
    else:
        await deployed_and_active(control, org, FEED.format(1, 2))
    await settle_sources(control)
    assert await must_stop(control, new)
    await end(control, new)
    assert "2" not in await runs(control)


async def test_a_newer_release_with_the_same_source_continues_where_it_stopped(control: Control, org: Org) -> None:
    await run_of(control, 1)
    await started(control, org, FEED.format(2, 1))
    first = await run_of(control, 2)
    await emit(control, first, state={"at": 1})
    await started(control, org, FEED.format(2, 2))
    await settle_sources(control)
    assert await must_stop(control, first)
    assert set(await runs(control)) == {"1"}, "two would write the same generation"
    await end(control, first, state={"at": 2})
    assert (await run_of(control, 2)).task.state == {"at": 2}


async def test_an_unchanged_source_is_not_run_twice(control: Control, org: Org) -> None:
    await run_of(control, 1)
    await started(control, org, FEED.format(1, 2))
    assert set(await runs(control)) == {"1"}
    assert await control.pool.fetchval("SELECT count(*) FROM sources") == 1


async def test_what_it_replaces_is_processed_again_before_the_release_is_ready(control: Control, org: Org) -> None:
    old = await run_of(control, 1)
    release = await started(control, org, FEED.format(2, 1))
    new = await run_of(control, 2)
    await announce(control, old, 0)
    await announce(control, new, 0)
    await settle(control)
    [output] = new.task.outputs
    named = {"dataset_uuid": output.dataset_uuid, "dataset_version": output.dataset_version}
    replaced = InvalidationBody(**named, start=0, end=9, reason="a reorg")  # type: ignore[arg-type]
    await emit(control, new, invalidations=[replaced])
    await build(control)
    version = (await shown(control, org, release)).members[0].dag_version_id
    assert await state_of(control, org, release) == "Ready"
    assert await control.pool.fetchval(INVALIDATED, version) == 1
    await promoted(control, org, release)
    await build(control)
    assert await control.pool.fetchval(INVALIDATED, version) == 1


async def test_the_plan_says_that_it_runs_twice(control: Control, org: Org) -> None:
    [warning] = (await plan(control, org, FEED.format(2, 1))).warnings
    assert "feed.follow: a changed always-on source starts from its beginning" in warning
    assert not (await plan(control, org, FEED.format(1, 2))).warnings
