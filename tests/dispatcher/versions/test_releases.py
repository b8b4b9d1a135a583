"""A release builds versions of DAGs beside the active ones; its promotion and rollback are one transaction each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, deployed_and_active
from tests.support.dispatcher.releases import (
    abandoned,
    build,
    plan,
    promoted,
    rolled_back,
    shown,
    start,
    started,
    state_of,
)
from tests.support.dispatcher.run_tasks import caught_up, claim_one, drain, finish, settle
from tests.support.operators import registered
from tests.support.verbs import activate_dag, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.deactivate import deactivate_dag
from tracelake.dispatcher.datasets.resolve_relations import user_relations
from tracelake.dispatcher.maintenance.remove_left_generations import RemoveLeftGenerations
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.errors import Conflict, InvalidDag, InvalidRequest, LeaseLost, NotFound
from tracelake.wire.internal.queries import RelationAnswer, RelationRequest, RelationsRequest
from tracelake.wire.user.backfills import GapsQuery

pytestmark = pytest.mark.anyio

MILL = """
name: mill
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: pull, source: {{kind: manual}}}}
  - {{name: grind, operator: pull, config: {{n: {0}}}, inputs: [{{from: {{job: ask}}}}]}}
  - {{name: bake, operator: pull, config: {{n: {1}}}, inputs: [{{from: {{job: grind}}}}]}}
publish:
  flour: {{job: grind}}
"""
SHOP = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: sell, operator: pull, inputs: [{from: {dataset: flour}}]}
publish:
  bread: {job: sell}
"""
SERVED = """
SELECT d.producer_job_name AS job, s.dataset_version AS version,
       array(SELECT p.partition_key FROM partition_versions p
              WHERE p.dataset_version = s.dataset_version AND p.valid_to IS NULL ORDER BY 1) AS keys
  FROM datasets d
  JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
"""
READ = """
SELECT DISTINCT i.input_dataset_version
  FROM commits m
  JOIN task_inputs i ON i.task_id = m.task_id AND i.attempt = m.attempt
 WHERE m.dataset_version = $1
"""
COMPLETED = """
SELECT j.name, count(*) AS tasks
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id
 WHERE t.status = 'Completed'
 GROUP BY j.name
"""


@pytest.fixture(autouse=True)
def pulling() -> Iterator[None]:
    with registered(pull=PULL):
        yield


@pytest.fixture
async def org(control: Control) -> Org:
    """With a mill and a shop that have processed two ranges."""
    made = await an_org(control.pool)
    await deployed_and_active(control, made, MILL.format(1, 1))
    await deployed_and_active(control, made, SHOP)
    for first in (0, 10):
        await ask(control, made, first)
    await settle(control)
    return made


async def ask(control: Control, org: Org, first: int) -> None:
    await trigger(control, org.id, "mill", "ask", start=first, end=first + 9, request_id=uuid4())


async def served(control: Control) -> dict[str, tuple[UUID, list[str]]]:
    return {row["job"]: (row["version"], row["keys"]) for row in await control.pool.fetch(SERVED)}


async def is_complete(control: Control, org: Org) -> bool:
    found = [await list_gaps(control.pool, org.as_user, GapsQuery(of=dag)) for dag in ("mill", "shop")]
    return all(gaps.complete for gaps in found)


async def test_a_release_builds_what_changes_and_all_that_reads_it_while_the_former_versions_serve(
    control: Control, org: Org
) -> None:
    before = await served(control)
    release = await started(control, org, MILL.format(2, 1))
    await build(control)
    assert await served(control) == before
    detail = await shown(control, org, release)
    assert detail.release.state == "Ready"
    assert {(m.dag, m.planned, m.done, m.failed) for m in detail.members} == {("mill", 4, 4, 0), ("shop", 2, 2, 0)}
    await promoted(control, org, release)
    after = await served(control)
    assert after["ask"] == before["ask"]
    for job in ("grind", "bake", "sell"):
        assert after[job][0] != before[job][0], job
        assert after[job][1] == ["0-9", "10-19"], job
    # The shop has read the new flour, in the release.
    assert [row[0] for row in await control.pool.fetch(READ, after["sell"][0])] == [after["grind"][0]]
    assert await is_complete(control, org)
    assert await state_of(control, org, release) == "Serving"


async def test_a_rollback_returns_the_whole_group_which_catches_up_from_where_it_stood(
    control: Control, org: Org
) -> None:
    before = await served(control)
    release = await started(control, org, MILL.format(2, 1))
    await build(control)
    await promoted(control, org, release)
    await ask(control, org, 20)
    await settle(control)
    newer = await served(control)
    assert newer["sell"][1] == ["0-9", "10-19", "20-29"]
    await rolled_back(control, org, release)
    back = await served(control)
    assert {job: version for job, (version, _) in back.items()} == {job: v for job, (v, _) in before.items()}
    assert back["sell"][1] == ["0-9", "10-19"]
    await build(control)
    assert (await served(control))["sell"][1] == ["0-9", "10-19", "20-29"]
    assert await is_complete(control, org)
    assert await state_of(control, org, release) == "Standby"


async def test_data_that_arrives_during_a_build_is_processed_by_both(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, 1))
    await ask(control, org, 20)
    await build(control)
    await ask(control, org, 30)
    await settle(control)
    assert (await served(control))["sell"][1] == ["0-9", "10-19", "20-29", "30-39"]
    await promoted(control, org, release)
    await build(control)
    assert (await served(control))["sell"][1] == ["0-9", "10-19", "20-29", "30-39"]
    assert await is_complete(control, org)


async def test_an_update_that_is_compared_before_it_is_routed_is_one_task_of_a_job_that_a_release_does_not_change(
    control: Control, org: Org
) -> None:
    await started(control, org, MILL.format(1, 2))
    await ask(control, org, 20)
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    await caught_up(control)
    await build(control)
    completed = {row["name"]: row["tasks"] for row in await control.pool.fetch(COMPLETED)}
    assert (completed["grind"], completed["bake"]) == (3, 2 * 3)


async def test_a_release_builds_what_failed_for_good_in_the_active_version(control: Control, org: Org) -> None:
    await ask(control, org, 20)
    await settle(control, fails=lambda _: True)
    assert (await served(control))["grind"][1] == ["0-9", "10-19"]
    await started(control, org, MILL.format(1, 2), when_ready=True)
    await build(control)
    assert (await served(control))["bake"][1] == ["0-9", "10-19", "20-29"]


async def test_a_release_that_is_to_be_promoted_when_ready_is(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    assert await state_of(control, org, release) == "Serving"
    assert (await served(control))["sell"][1] == ["0-9", "10-19"]


async def test_a_promotion_and_a_rollback_that_are_repeated_change_nothing(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, 1))
    await build(control)
    first = await promoted(control, org, release)
    again = await promoted(control, org, release)
    assert (again.versions, again.canceled_tasks) == (first.versions, 0)
    back = await rolled_back(control, org, release)
    assert (await rolled_back(control, org, release)).versions == back.versions


async def test_a_release_that_is_not_ready_failed_or_was_abandoned_is_not_promoted(control: Control, org: Org) -> None:
    before = await served(control)
    release = await started(control, org, MILL.format(2, 1))
    with pytest.raises(Conflict, match="this one is Building"):
        await promoted(control, org, release)
    await build(control, fails=lambda _: True)
    detail = await shown(control, org, release)
    assert detail.release.state == "Building"
    assert sum(member.failed for member in detail.members) > 0
    assert "failed" in (detail.release.message or "")
    with pytest.raises(Conflict, match="this one is Building"):
        await promoted(control, org, release)
    await abandoned(control, org, release)
    with pytest.raises(Conflict, match="this one is Abandoned"):
        await promoted(control, org, release, force=True)
    assert await served(control) == before


async def test_force_promotes_what_is_not_complete_and_the_rest_follows(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, 1))
    await promoted(control, org, release, force=True)
    assert (await served(control))["grind"][1] == []
    await build(control)
    assert (await served(control))["sell"][1] == ["0-9", "10-19"]
    assert await is_complete(control, org)


async def test_tasks_of_an_abandoned_release_end_and_cannot_commit(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, 1))
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    await caught_up(control)
    await drain(control)
    held = await claim_one(control)
    assert held is not None
    await abandoned(control, org, release)
    with pytest.raises((LeaseLost, Conflict)):
        await finish(control, held)
    waiting = "SELECT count(*) FROM tasks WHERE status IN ('Queued', 'Running')"
    assert await control.pool.fetchval(waiting) == 0
    assert (await abandoned(control, org, release)).state == "Abandoned"


async def test_a_newer_release_replaces_one_that_builds_the_same_dag(control: Control, org: Org) -> None:
    first = await started(control, org, MILL.format(2, 1))
    second = await started(control, org, MILL.format(3, 1))
    assert await state_of(control, org, first) == "Abandoned"
    await build(control)
    assert await state_of(control, org, second) == "Ready"


async def test_activating_another_version_meanwhile_abandons_the_release(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, 1))
    await deployed_and_active(control, org, MILL.format(1, 2))
    detail = await shown(control, org, release)
    assert detail.release.state == "Abandoned"
    assert "DAG mill has changed" in (detail.release.message or "")


async def test_deactivating_a_dag_meanwhile_abandons_the_release(control: Control, org: Org) -> None:
    release = await started(control, org, SHOP.replace("name: sell,", "name: sell, config: {n: 2},"))
    await deactivate_dag(control.pool, control.after_commit, org.id, "shop")
    assert await state_of(control, org, release) == "Abandoned"


async def test_one_dag_of_a_group_that_moved_keeps_the_group_from_going_back(control: Control, org: Org) -> None:
    former = await control.pool.fetchval("SELECT dag_version_id FROM dag_current_versions WHERE dag_name = 'shop'")
    release = await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    await activate_dag(control, org.id, "shop", former)
    with pytest.raises(Conflict, match="only the release that serves"):
        await rolled_back(control, org, release)


async def test_a_new_dag_is_a_member_without_a_former_version_and_a_rollback_deactivates_it(
    control: Control, org: Org
) -> None:
    cafe = SHOP.replace("name: shop", "name: cafe").replace("bread", "cake")
    release = await started(control, org, cafe, when_ready=True)
    await build(control)
    assert await state_of(control, org, release) == "Serving"
    await rolled_back(control, org, release)
    active = await control.pool.fetch("SELECT dag_name FROM dag_current_versions ORDER BY 1")
    assert [row["dag_name"] for row in active] == ["mill", "shop"]


async def test_dags_that_read_each_other_for_the_first_time_are_released_together(control: Control) -> None:
    org = await an_org(control.pool)
    release = await started(control, org, SHOP, MILL.format(1, 1), when_ready=True)
    await build(control)
    assert await state_of(control, org, release) == "Serving"
    await ask(control, org, 0)
    await settle(control)
    assert (await served(control))["sell"][1] == ["0-9"]


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


async def test_a_commit_is_read_in_its_own_generation_whichever_version_serves(control: Control, org: Org) -> None:
    first = await relation(control, org)
    release = await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    second = await relation(control, org)
    assert first.dataset_version != second.dataset_version
    for known in (first, second):
        found = await relation(control, org, as_of=known.commit)
        assert (found.dataset_version, found.commit) == (known.dataset_version, known.commit)
        assert keys(found) == keys(known) == ["0-9", "10-19"]
    await rolled_back(control, org, release)
    assert (await relation(control, org, as_of=second.commit)).dataset_version == second.dataset_version
    assert (await relation(control, org)).dataset_version == first.dataset_version


async def test_a_time_is_read_in_the_generation_that_served_then(control: Control, org: Org) -> None:
    first = await relation(control, org)
    then = await control.pool.fetchval("SELECT clock_timestamp()")
    await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    found = await relation(control, org, as_of=then)
    assert (found.dataset_version, found.commit) == (first.dataset_version, first.commit)


async def test_while_a_release_builds_the_answer_names_a_commit_of_what_serves(control: Control, org: Org) -> None:
    before = await relation(control, org)
    await started(control, org, MILL.format(2, 1))
    await build(control)
    assert (await relation(control, org)).commit == before.commit


async def test_a_commit_of_a_removed_generation_is_said_to_be_gone(control: Control, org: Org) -> None:
    first = await relation(control, org)
    await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    await remove_left(control)
    with pytest.raises(NotFound, match="are gone"):
        await relation(control, org, as_of=first.commit)


async def test_a_release_whose_generations_were_removed_is_retired(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    await rolled_back(control, org, release)
    await remove_left(control)
    assert await state_of(control, org, release) == "Retired"


async def remove_left(control: Control) -> None:
    """As if eight days had passed."""
    left = "UPDATE dataset_versions SET left_at = now() - interval '8 days' WHERE left_at IS NOT NULL"
    await control.pool.execute(left)
    loop = RemoveLeftGenerations(control.pool, control.objects, timedelta(days=7))
    while await loop.once():
        pass


async def relation(control: Control, org: Org, as_of: int | datetime | None = None) -> RelationAnswer:
    request = RelationsRequest(tables=[RelationRequest(name="flour", as_of=as_of)])
    (found,) = (await user_relations(control.pool, org.as_user, request)).relations
    return found


def keys(found: RelationAnswer) -> list[str]:
    assert found.cold is not None
    assert found.cold.partitions is not None
    return [partition.partition_key for partition in found.cold.partitions]


async def test_readers_during_promotions_and_rollbacks_see_one_group_or_the_other(
    control: Control, org: Org, pytestconfig: pytest.Config
) -> None:
    """At least so many switches, and reads while they are made: none is of both groups, and none finds nothing."""
    most, switches = pytestconfig.getoption("switch_reads"), 0
    served_pairs = {await pair(control, org)}
    seen: list[tuple[UUID, UUID]] = []
    stop = asyncio.Event()

    async def read() -> None:
        while not stop.is_set():
            seen.append(await pair(control, org))

    readers = [asyncio.create_task(read()) for _ in range(4)]
    while switches < most // 100 or len(seen) < most:
        release = await started(control, org, MILL.format(2, 1))
        await build(control)
        await promoted(control, org, release)
        served_pairs.add(await pair(control, org))
        await rolled_back(control, org, release)
        switches += 2
    stop.set()
    await asyncio.gather(*readers)
    assert len(served_pairs) == 2
    assert set(seen) == served_pairs


async def pair(control: Control, org: Org) -> tuple[UUID, UUID]:
    """The generations of both datasets, resolved as one query does."""
    request = RelationsRequest(tables=[RelationRequest(name="flour"), RelationRequest(name="bread")])
    found = {r.name: r for r in (await user_relations(control.pool, org.as_user, request)).relations}
    assert len(found) == 2
    assert keys(found["flour"]) == keys(found["bread"]) == ["0-9", "10-19"]
    return found["flour"].dataset_version, found["bread"].dataset_version
