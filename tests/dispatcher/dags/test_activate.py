"""Activation is one moment: pointer, names, edges, tasks and sources change together, and nothing is lost."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, deployed_and_active
from tests.support.verbs import activate_dag, deploy_dag, invalidate, trigger
from tracelake.capability.claims import Claims, decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.cancel_retired import cancel_retired_tasks
from tracelake.domain.dag.model import JobOutput
from tracelake.domain.ids import JobName
from tracelake.errors import Conflict, LeaseLost, NotFound
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest
from tracelake.wire.task.outputs import CompleteRequest

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

DAG = """
name: mill
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: grind, operator: pull, config: {n: 1}, inputs: [{from: {job: ask}}]}
  - {name: store, operator: pull, inputs: [{from: {job: ask}}]}
publish:
  flour: {job: grind, read_roles: [bakers]}
  grain: {job: ask}
"""
OTHER_GRIND = DAG.replace("{n: 1}", "{n: 2}")


@pytest.fixture
async def org(control: Control) -> Org:
    made = await an_org(control.pool)
    await control.pool.execute("INSERT INTO org_roles (org_id, slug, name) VALUES ($1, 'bakers', 'Bakers')", made.id)
    return made


async def names(control: Control) -> dict[str, str]:
    rows = await control.pool.fetch("SELECT name, producer_job_name FROM datasets WHERE name IS NOT NULL")
    return {row["name"]: row["producer_job_name"] for row in rows}


async def live(control: Control) -> list[UUID]:
    rows = await control.pool.fetch(
        "SELECT DISTINCT j.dag_version_id FROM job_inputs i JOIN jobs j ON j.id = i.job_id WHERE i.live"
    )
    return [row["dag_version_id"] for row in rows]


async def states(control: Control, version: UUID) -> list[tuple[str, str]]:
    rows = await control.pool.fetch(
        "SELECT j.name, t.status::text AS status FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.dag_version_id = $1 ORDER BY 1, 2",
        version,
    )
    return [(row["name"], row["status"]) for row in rows]


async def claim_queued(control: Control, job_id: UUID) -> tuple[Claimed, Claims]:
    task = await control.pool.fetchval("SELECT id FROM tasks WHERE job_id = $1 AND status = 'Queued' LIMIT 1", job_id)
    [found] = await control.claimer().claim([ClaimRequest(task_id=task, worker_id="w")])
    assert isinstance(found, Claimed)
    return found, decode(parse_token(found.capability_token).payload)


async def test_activation_moves_pointer_names_and_edges(control: Control, org: Org) -> None:
    first = await deploy_dag(control, org.id, org.user, DAG)
    assert await names(control) == {}
    done = await activate_dag(control, org.id, "mill", first.dag_version_id)
    assert (done.former, done.changed) == (None, True)
    assert await names(control) == {"flour": "grind", "grain": "ask"}
    [row] = await control.pool.fetch("SELECT visibility::text, read_roles FROM datasets WHERE name = 'flour'")
    assert (row["visibility"], row["read_roles"]) == ("roles", ["role:bakers"])
    assert await control.pool.fetchval("SELECT visibility::text FROM datasets WHERE name = 'grain'") == "org"
    assert await live(control) == [first.dag_version_id]
    # The names change places, one goes and one comes.
    swapped = DAG.replace("flour: {job: grind, read_roles: [bakers]}", "grain: {job: grind}")
    swapped = swapped.replace("grain: {job: ask}", "flour: {job: ask}\n  stock: {job: store}")
    second = await deploy_dag(control, org.id, org.user, swapped)
    again = await activate_dag(control, org.id, "mill", second.dag_version_id)
    assert again.former == first.dag_version_id
    assert await names(control) == {"grain": "grind", "flour": "ask", "stock": "store"}
    assert await live(control) == [second.dag_version_id]


async def test_activating_what_is_active_does_nothing(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, DAG)
    await trigger(control, org.id, "mill", "ask", cursor=1, request_id=uuid4())
    await control.drain().once()
    again = await activate_dag(control, org.id, "mill", done.dag_version_id)
    assert (again.changed, again.canceled_tasks) == (False, 0)
    assert await states(control, done.dag_version_id) == [("grind", "Queued"), ("store", "Queued")]


async def test_tasks_of_a_version_that_left_are_canceled_and_unchanged_jobs_go_on(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    for cursor in (1, 2):
        await trigger(control, org.id, "mill", "ask", cursor=cursor, request_id=uuid4())
    await control.drain().once()
    running = [await claim_queued(control, first.jobs[job]) for job in ("grind", "store")]
    second = await deploy_dag(control, org.id, org.user, OTHER_GRIND)
    done = await activate_dag(control, org.id, "mill", second.dag_version_id)
    assert (done.canceled_tasks, done.made_again) == (4, 2)
    assert {state for _, state in await states(control, first.dag_version_id)} == {"Canceled"}
    assert await states(control, second.dag_version_id) == [("store", "Queued"), ("store", "Queued")]
    for claimed, claims in running:
        request = CompleteRequest(
            task_id=claimed.task.task_id, attempt=claimed.attempt, lease_token=claimed.lease_token, status="Completed"
        )
        with pytest.raises(LeaseLost):
            await control.completer()(request, claims)
    outcomes = await control.pool.fetch("SELECT DISTINCT outcome::text FROM task_attempts")
    assert [row["outcome"] for row in outcomes] == ["Canceled"]
    await control.drain().once()
    assert (await control.queue.depth("tasks-ecs_platform")).ready == 6


async def test_there_and_back_again_loses_no_work(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    second = await deploy_dag(control, org.id, org.user, OTHER_GRIND)
    await trigger(control, org.id, "mill", "ask", cursor=1, request_id=uuid4())
    await control.drain().once()
    for version in (second, first, second, first):
        done = await activate_dag(control, org.id, "mill", version.dag_version_id)
        assert done.made_again == 1
        queued = [item for item in await states(control, version.dag_version_id) if item[1] == "Queued"]
        assert queued == [("store", "Queued")]


async def test_a_task_that_was_routed_while_its_version_left_is_found(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    second = await deployed_and_active(control, org, OTHER_GRIND)
    await control.pool.execute(
        "INSERT INTO tasks (org_id, job_id, dedupe_key, woken_at)"
        " SELECT org_id, id, 'cursor:late', now() FROM jobs WHERE id = ANY ($1::uuid[])",
        [first.jobs["grind"], first.jobs["store"]],
    )
    assert await cancel_retired_tasks(control.pool, control.after_commit) == 2
    assert await states(control, second.dag_version_id) == [("store", "Queued")]
    assert await cancel_retired_tasks(control.pool, control.after_commit) == 0


async def test_activations_at_once_come_one_after_the_other(control: Control, org: Org) -> None:
    versions = [
        await deploy_dag(control, org.id, org.user, DAG.replace("{n: 1}", f"{{n: {n}}}").replace("flour", f"flour_{n}"))
        for n in range(3)
    ]
    done = await asyncio.gather(
        *(activate_dag(control, org.id, "mill", version.dag_version_id) for version in versions)
    )
    former = [outcome.former for outcome in done]
    assert former.count(None) == 1
    assert len(set(former)) == 3
    active = await control.pool.fetchval("SELECT dag_version_id FROM dag_current_versions")
    assert await live(control) == [active]
    number = [version.dag_version_id for version in versions].index(active)
    assert set(await names(control)) == {f"flour_{number}", "grain"}


BAKERY = """
name: bakery
jobs:
  - {name: bake, operator: pull, runtime: ecs_platform, inputs: [{from: {dataset: flour}}]}
publish: {bread: {job: bake}}
"""


async def test_a_name_that_was_taken_meanwhile_is_a_conflict(control: Control, org: Org) -> None:
    mill = await deploy_dag(control, org.id, org.user, DAG)
    thief = DAG.replace("name: mill", "name: thief").replace("grain:", "other_grain:")
    other = await deploy_dag(control, org.id, org.user, thief)
    results = await asyncio.gather(
        activate_dag(control, org.id, "mill", mill.dag_version_id),
        activate_dag(control, org.id, "thief", other.dag_version_id),
        return_exceptions=True,
    )
    refused = [result for result in results if isinstance(result, BaseException)]
    assert [type(item) for item in refused] == [Conflict]
    assert "already publishes 'flour'" in str(refused[0])
    assert len(await live(control)) == 1


async def test_what_another_dag_reads_is_not_taken_away(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await deployed_and_active(control, org, BAKERY)
    for gone in (
        DAG.replace("  flour: {job: grind, read_roles: [bakers]}\n", ""),
        DAG.replace("flour:", "powder:"),
        DAG.replace("flour: {job: grind,", "flour: {job: store,"),
    ):
        version = await deploy_dag(control, org.id, org.user, gone)
        with pytest.raises(Conflict, match="'flour' is read by bakery"):
            await activate_dag(control, org.id, "mill", version.dag_version_id)
    assert await names(control) == {"flour": "grind", "grain": "ask", "bread": "bake"}


async def test_an_input_by_name_means_what_the_name_means_at_activation(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    bakery = await deploy_dag(control, org.id, org.user, BAKERY)
    moved = await deployed_and_active(control, org, DAG.replace("flour: {job: grind,", "flour: {job: store,"))
    await activate_dag(control, org.id, "bakery", bakery.dag_version_id)
    store = moved.datasets[JobOutput(JobName("store"), 0)]
    assert (
        await control.pool.fetchval("SELECT dataset_uuid FROM job_inputs WHERE job_id = $1", bakery.jobs["bake"])
        == store
    )
    assert await control.pool.fetchval("SELECT input_datasets FROM jobs WHERE id = $1", bakery.jobs["bake"]) == [store]


async def test_a_cycle_through_two_dags_is_found_at_activation(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    bread_from_nothing = BAKERY.replace("inputs: [{from: {dataset: flour}}]", "source: {kind: manual}")
    await deployed_and_active(control, org, bread_from_nothing)
    # Each of these two fits what is active now; both together do not.
    bakery = await deploy_dag(control, org.id, org.user, BAKERY)
    mill = await deploy_dag(
        control, org.id, org.user, DAG.replace("source: {kind: manual}", "inputs: [{from: {dataset: bread}}]")
    )
    await activate_dag(control, org.id, "mill", mill.dag_version_id)
    with pytest.raises(Conflict, match="circle"):
        await activate_dag(control, org.id, "bakery", bakery.dag_version_id)


async def test_an_unknown_version_is_not_found(control: Control, org: Org) -> None:
    done = await deploy_dag(control, org.id, org.user, DAG)
    for dag, version in (("mill", uuid4()), ("bakery", done.dag_version_id)):
        with pytest.raises(NotFound):
            await activate_dag(control, org.id, dag, version)


async def test_an_activation_that_fails_half_way_changes_nothing(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    await trigger(control, org.id, "mill", "ask", cursor=1, request_id=uuid4())
    await control.drain().once()
    second = await deploy_dag(control, org.id, org.user, OTHER_GRIND.replace("grain:", "corn:"))
    await control.pool.execute("ALTER TABLE tasks ADD CONSTRAINT none CHECK (status <> 'Canceled')")
    with pytest.raises(asyncpg.CheckViolationError, match="none"):
        await activate_dag(control, org.id, "mill", second.dag_version_id)
    assert await live(control) == [first.dag_version_id]
    assert set(await names(control)) == {"flour", "grain"}
    assert await states(control, first.dag_version_id) == [("grind", "Queued"), ("store", "Queued")]


WITH_TABLE = DAG.replace("store, operator: pull,", "store, operator: pull, outputs: [{dataset: sacks}],").replace(
    "source: {kind: manual}}", "source: {kind: manual}, config: {n: 1}}"
)
WITH_TABLE += """  sacks:
    storage: postgres
    write_mode: buffered
    columns: {sack: text}
    unique_key: [sack]
"""
OTHER_GRAIN = WITH_TABLE.replace("{kind: manual}, config: {n: 1}", "{kind: manual}, config: {n: 2}")


@pytest.mark.parametrize("routed", [False, True])
async def test_an_invalidation_of_a_generation_that_left_makes_no_task(
    control: Control, org: Org, routed: bool
) -> None:
    """Accepted before the swap, and routed after it or before: `store` goes on, since its table is the same one."""
    first = await deployed_and_active(control, org, WITH_TABLE)
    second = await deploy_dag(control, org.id, org.user, OTHER_GRAIN)
    accepted = await invalidate(
        control, org.id, org.user, "grain", start=0, end=9, reason="it was wet", request_id=uuid4()
    )
    if routed:
        while await control.drain().once():
            pass
        assert await states(control, first.dag_version_id) == [("grind", "Queued"), ("store", "Queued")]
    await activate_dag(control, org.id, "mill", second.dag_version_id)
    while await control.drain().once():
        pass
    assert await states(control, first.dag_version_id) == ([("grind", "Canceled"), ("store", "Canceled")] * routed)
    assert await states(control, second.dag_version_id) == []
    row = await control.pool.fetchrow(
        "SELECT disposition::text, audit_reason, routed_at IS NOT NULL AS routed FROM data_invalidations WHERE id = $1",
        accepted.invalidation_id,
    )
    left = "the generation left before the invalidation was routed"
    assert tuple(row or ()) == (("Route", None, True) if routed else ("AuditOnly", left, False))
    assert not await control.pool.fetchval("SELECT count(*) FROM outbox WHERE status <> 'Done'")
