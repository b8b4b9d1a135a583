"""Limits that jobs share, with the real Dispatcher: how many tasks of an operator or a runtime are in flight."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from uuid import UUID

import pytest

from tests.support.dispatcher.control import an_org, deployed_and_active
from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain, drained
from tests.support.metrics import counted
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.show import show_dag
from tracelake.dispatcher.flow.list_in_flight import list_in_flight
from tracelake.dispatcher.flow.set_limits import set_limits
from tracelake.dispatcher.read_gauges import Gauges
from tracelake.dispatcher.why.explain import explain_task
from tracelake.errors import SettingsError
from tracelake.settings import RUNTIMES, OperatorSettings, RuntimeSettings

pytestmark = pytest.mark.anyio

DAG = """
name: shop
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: load, operator: noop, inputs: [{from: {job: ask}}]}
"""
WOKEN = """
SELECT t.id, t.org_id, j.name, t.priority::text
  FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL AND j.name <> 'first'
 ORDER BY t.woken_at, t.id
"""


async def limit(control: Control, *, noop: int | None = None, platform: int | None = None) -> None:
    runtimes: Mapping[str, RuntimeSettings] = {
        **RUNTIMES,
        "ecs_platform": RuntimeSettings(queue="tasks-ecs_platform", max_in_flight=platform),
    }
    await set_limits(control.pool, runtimes, {"noop": OperatorSettings(max_in_flight=noop)})


async def make(control: Control, chain: Chain, cursors: range, *, history: bool = False) -> None:
    """So many tasks of `second`; that of `first` ends, so it counts no more."""
    task = await a_task(control, chain)
    await control.pool.execute("UPDATE tasks SET history = $2 WHERE id = $1", task, history)
    source, claims = await claimed(control, task)
    events = [chain.event("first", cursor=cursor) for cursor in cursors]
    await control.completer()(completion(source, events=events), claims)
    await drained(control)


async def in_flight(control: Control) -> list[tuple[UUID, UUID, str, str]]:
    return [tuple(row) for row in await control.pool.fetch(WOKEN)]


async def run_all(control: Control, most: int) -> Counter[str]:
    """Completes what is woken until nothing is, and checks before each that no more are in flight than may be."""
    done = Counter[str]()
    while woken := await in_flight(control):
        assert len(woken) <= most
        task, org, _, priority = woken[0]
        running, claims = await claimed(control, task)
        await control.completer()(completion(running), claims)
        await drained(control)
        done[f"{org}"] += 1
        done[priority] += 1
    return done


async def test_no_more_tasks_of_an_operator_are_in_flight_than_its_limit_and_all_of_them_run(control: Control) -> None:
    chains = await deploy_chain(control), await deploy_chain(control, slug="other")
    await limit(control, noop=3)
    for chain in chains:
        await make(control, chain, range(10))
    assert len(await in_flight(control)) == 3
    done = await run_all(control, 3)
    assert [done[str(chain.org.id)] for chain in chains] == [10, 10]


async def test_the_limit_of_a_runtime_holds_together_with_those_of_a_job_and_an_operator(control: Control) -> None:
    capped, other = await deploy_chain(control, max_concurrency=2), await deploy_chain(control, slug="other")
    await limit(control, noop=5, platform=4)
    await make(control, capped, range(8))
    await make(control, other, range(8))
    assert Counter(org for _, org, _, _ in await in_flight(control)) == {capped.org.id: 2, other.org.id: 2}
    assert (await run_all(control, 4)).total() == 2 * 16


async def test_organisations_take_turns_for_the_slots_of_an_operator(control: Control) -> None:
    many, few = await deploy_chain(control), await deploy_chain(control, slug="few")
    await limit(control, noop=4)
    await make(control, many, range(30))
    await make(control, few, range(2))
    for _ in range(4):
        task, *_ = (await in_flight(control))[0]
        running, claims = await claimed(control, task)
        await control.completer()(completion(running), claims)
        await drained(control)
    done = await control.pool.fetchval(
        "SELECT count(*) FROM tasks WHERE job_id = $1 AND woken_at IS NOT NULL", few.jobs["second"]
    )
    assert done == 2, "it has not waited for the 30 of the other"


async def test_bulk_has_a_part_of_a_limit_and_new_data_has_the_rest(control: Control) -> None:
    chain = await deploy_chain(control)
    await limit(control, noop=4)
    await make(control, chain, range(100, 120), history=True)
    assert [priority for *_, priority in await in_flight(control)] == ["bulk"] * 4
    await make(control, chain, range(20))
    seen = list[int]()
    for _ in range(12):
        task, *_ = (await in_flight(control))[0]
        running, claims = await claimed(control, task)
        await control.completer()(completion(running), claims)
        await drained(control)
        seen.append(sum(priority == "bulk" for *_, priority in await in_flight(control)))
    assert seen[-8:] == [1] * 8, "it is neither shut out nor in the way"


async def test_a_limit_that_is_taken_away_lets_everything_run(control: Control) -> None:
    chain = await deploy_chain(control)
    await limit(control, noop=1)
    await make(control, chain, range(5))
    assert len(await in_flight(control)) == 1
    await limit(control)
    await drained(control)
    assert len(await in_flight(control)) == 5
    await make(control, chain, range(10, 13))
    assert len(await in_flight(control)) == 8


async def test_two_replicas_together_keep_a_limit(control: Control) -> None:
    chains = [await deploy_chain(control, slug=f"org_{number}") for number in range(3)]
    await limit(control, noop=3)
    for chain in chains:
        await make(control, chain, range(5))
    for _ in range(5):
        woken = await in_flight(control)
        ended = [await claimed(control, task) for task, *_ in woken]
        await asyncio.gather(*(control.completer()(completion(task), claims) for task, claims in ended))
        await asyncio.gather(*(drained(control) for _ in range(3)))
        assert len(await in_flight(control)) <= 3


async def test_what_is_in_flight_is_listed_by_operator_counted_and_explained(control: Control) -> None:
    chain = await deploy_chain(control)
    await limit(control, noop=2)
    await make(control, chain, range(5))
    task, *_ = (await in_flight(control))[0]
    await claimed(control, task)
    (found,) = (await list_in_flight(control.pool, chain.org.id)).in_flight
    assert (found.operator, found.runtime, found.running, found.woken, found.waiting) == (
        "noop",
        "ecs_platform",
        1,
        1,
        3,
    )
    assert (found.operator_limit, found.runtime_limit) == (2, None)
    await Gauges(control.pool, control.queue, control.runtimes, control.metrics).refresh()
    labels = {"org": str(chain.org.id), "operator": "noop", "runtime": "ecs_platform", "state": "waiting"}
    assert counted(control.metrics, "trace_tasks_in_flight", **labels) == 3
    waiting = await control.pool.fetchval("SELECT id FROM tasks WHERE woken_at IS NULL AND status = 'Queued' LIMIT 1")
    explained = await explain_task(control.pool, chain.org.id, waiting)
    assert explained.stopped is not None
    assert "2 of 2 operator noop (max_in_flight)" in explained.stopped.sentence


async def test_a_limit_of_an_operator_that_does_not_exist_is_refused(control: Control) -> None:
    with pytest.raises(SettingsError, match="no operator 'nop'"):
        await set_limits(control.pool, RUNTIMES, {"nop": OperatorSettings(max_in_flight=1)})


async def test_a_job_that_is_deployed_later_has_the_limit_too(control: Control) -> None:
    await limit(control, noop=2)
    org = await an_org(control.pool)
    await deployed_and_active(control, org, DAG)
    shares = "SELECT bool_and(shares_limit), bool_and(max_concurrency = 2147483647) FROM jobs"
    assert [tuple(row) for row in await control.pool.fetch(shares)] == [(True, True)]


async def test_a_reactive_job_is_running_while_tasks_of_it_are_queued_or_run_and_idle_otherwise(
    control: Control,
) -> None:
    chain = await deploy_chain(control)

    async def states() -> dict[str, str | None]:
        """As the DAG shows them; the counts of `trace status` agree."""
        found = {job.name: job.state for job in (await show_dag(control.pool, chain.org.id, "chain")).jobs}
        counts = await list_in_flight(control.pool, chain.org.id)
        values = list(found.values())
        assert (counts.jobs_running, counts.jobs_idle) == (values.count("Running"), values.count("Idle"))
        return found

    idle = {"first": None, "second": "Idle", "third": "Idle"}
    assert await states() == idle
    await make(control, chain, range(1))
    assert await states() == idle | {"second": "Running"}, "it is queued"
    ((task, *_),) = await in_flight(control)
    lease, claims = await claimed(control, task)
    assert await states() == idle | {"second": "Running"}
    await control.completer()(completion(lease), claims)
    assert await states() == idle
