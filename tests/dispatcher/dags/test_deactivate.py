"""A deactivated DAG gets no tasks and serves nothing, until a version of it is activated again."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, deployed_and_active
from tests.support.dispatcher.job_chain import claimed, drained
from tests.support.dispatcher.run_tasks import caught_up
from tests.support.operators import registered
from tests.support.verbs import activate_dag, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.deactivate import deactivate_dag
from tracelake.dispatcher.maintenance.cancel_retired import cancel_retired_tasks
from tracelake.errors import Conflict, NotFound

pytestmark = pytest.mark.anyio

SHOP = """
name: shop
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: work, operator: pull, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
  - {name: follow, operator: pull, runtime: ecs_platform, source: {kind: always_on}}
publish:
  orders: {job: ask}
"""
READER = """
name: reader
jobs:
  - {name: read, operator: noop, runtime: dispatcher, inputs: [{from: {dataset: orders}}]}
"""


@pytest.fixture(autouse=True)
def pulling() -> Iterator[None]:
    with registered(pull=PULL):
        yield


async def stopped(control: Control, org: Org, dag: str = "shop") -> tuple[bool, int]:
    done = await deactivate_dag(control.pool, control.after_commit, org.id, dag)
    return done.changed, done.canceled_tasks


async def work_tasks(control: Control) -> list[tuple[UUID, str]]:
    rows = await control.pool.fetch(
        "SELECT t.id, t.status::text FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work' ORDER BY t.id"
    )
    return [(row["id"], row["status"]) for row in rows]


async def test_its_tasks_end_its_names_are_released_and_no_new_task_is_made(control: Control) -> None:
    org = await an_org(control.pool)
    await deployed_and_active(control, org, SHOP)
    await trigger(control, org.id, "shop", "ask", cursor=1, request_id=uuid4())
    await drained(control)
    ((task, _),) = await work_tasks(control)
    await claimed(control, task)
    assert await stopped(control, org) == (True, 1)
    assert await work_tasks(control) == [(task, "Canceled")]
    assert await control.pool.fetchval("SELECT count(*) FROM datasets WHERE name IS NOT NULL") == 0
    assert await control.pool.fetchval("SELECT count(*) FROM job_inputs WHERE live") == 0
    assert await control.pool.fetchval("SELECT count(*) FROM sources") == 0, "its run had not begun"
    assert await stopped(control, org) == (False, 0), "again is nothing new"
    await deployed_and_active(control, org, SHOP.replace("name: shop", "name: other"))
    assert await control.pool.fetchval("SELECT producer_dag_name FROM datasets WHERE name = 'orders'") == "other"


async def test_a_task_made_at_the_same_time_is_canceled_later(control: Control) -> None:
    org = await an_org(control.pool)
    await deployed_and_active(control, org, SHOP)
    await trigger(control, org.id, "shop", "ask", cursor=1, request_id=uuid4())
    await drained(control)
    await stopped(control, org)
    await control.pool.execute(
        "INSERT INTO tasks (org_id, job_id, dedupe_key, timeout_seconds, woken_at)"
        " SELECT org_id, id, 'late', 60, now() FROM jobs WHERE name = 'work'"
    )
    assert await cancel_retired_tasks(control.pool, control.after_commit) == 1
    assert {status for _, status in await work_tasks(control)} == {"Canceled"}


async def test_it_is_refused_while_another_dag_reads_it_and_names_that_dag(control: Control) -> None:
    org = await an_org(control.pool)
    await deployed_and_active(control, org, SHOP)
    await deployed_and_active(control, org, READER)
    with pytest.raises(Conflict, match="'orders' is read by reader") as refused:
        await stopped(control, org)
    assert refused.value.hint == "first, `trace dag deactivate reader`"
    assert await control.pool.fetchval("SELECT count(*) FROM dag_current_versions") == 2, "nothing was done"
    assert await stopped(control, org, "reader") == (True, 0)
    assert await stopped(control, org) == (True, 0)


async def test_a_version_that_is_activated_again_serves_what_it_had(control: Control) -> None:
    org = await an_org(control.pool)
    deployed = await deployed_and_active(control, org, SHOP)
    await stopped(control, org)
    await activate_dag(control, org.id, "shop", deployed.dag_version_id)
    assert await control.pool.fetchval("SELECT name FROM datasets WHERE name IS NOT NULL") == "orders"
    await trigger(control, org.id, "shop", "ask", cursor=1, request_id=uuid4())
    await drained(control)
    assert [status for _, status in await work_tasks(control)] == ["Queued"]


async def test_work_that_was_canceled_with_the_dag_is_made_when_the_same_version_is_activated_again(
    control: Control,
) -> None:
    org = await an_org(control.pool)
    deployed = await deployed_and_active(control, org, SHOP)
    await trigger(control, org.id, "shop", "ask", cursor=1, request_id=uuid4())
    await drained(control)
    assert await stopped(control, org) == (True, 1)
    await activate_dag(control, org.id, "shop", deployed.dag_version_id)
    await caught_up(control)
    assert [status for _, status in await work_tasks(control)] == ["Canceled", "Queued"]


async def test_an_unknown_dag_is_not_found(control: Control) -> None:
    org = await an_org(control.pool)
    with pytest.raises(NotFound, match="there is no DAG 'shop'"):
        await stopped(control, org)
