"""A release builds versions of DAGs beside the active ones; its promotion and rollback are one transaction each."""

from __future__ import annotations

import pytest

from tests.support.dispatcher.control import Org, an_org, deployed_and_active
from tests.support.dispatcher.mill_and_shop import COMPLETED, MILL, READ, SHOP, ask, is_complete, served
from tests.support.dispatcher.releases import (
    abandoned,
    build,
    promoted,
    rolled_back,
    shown,
    started,
    state_of,
)
from tests.support.dispatcher.run_tasks import caught_up, claim_one, drain, finish, settle
from tests.support.verbs import activate_dag
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.deactivate import deactivate_dag
from tracelake.errors import Conflict, LeaseLost

pytestmark = pytest.mark.anyio


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
    release = await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    await deployed_and_active(control, org, SHOP.replace("name: sell,", "name: sell, config: {n: 2},"))
    with pytest.raises(Conflict, match="only the release that serves"):
        await rolled_back(control, org, release)


async def test_one_dag_of_a_group_cannot_go_back_alone_and_all_of_them_can(control: Control, org: Org) -> None:
    """The bread of `shop` was made from the flour of `mill`: one of both alone would serve a mixture."""
    pointers = "SELECT dag_name, dag_version_id FROM dag_current_versions ORDER BY 1"
    former = {row["dag_name"]: row["dag_version_id"] for row in await control.pool.fetch(pointers)}
    release = await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    before = await served(control)
    for dag, other in (("shop", "mill"), ("mill", "shop")):
        with pytest.raises(
            Conflict, match=f"'{dag}' was released together with {other}, and cannot go back"
        ) as refused:
            await activate_dag(control, org.id, dag, former[dag])
        assert (refused.value.where, f"trace release rollback {release}" in (refused.value.hint or "")) == (dag, True)
    assert (await served(control), await state_of(control, org, release)) == (before, "Serving")
    await rolled_back(control, org, release)
    assert {row["dag_name"]: row["dag_version_id"] for row in await control.pool.fetch(pointers)} == former


async def test_a_dag_that_was_released_alone_goes_back_by_an_activation(control: Control, org: Org) -> None:
    former = await control.pool.fetchval("SELECT dag_version_id FROM dag_current_versions WHERE dag_name = 'mill'")
    release = await started(control, org, MILL.format(1, 2), when_ready=True)
    await build(control)
    await activate_dag(control, org.id, "mill", former)
    assert await state_of(control, org, release) == "Standby"


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
