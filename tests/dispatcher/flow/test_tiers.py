"""Tiers and turns with the real Dispatcher: which queue a task's wake-up goes to, and whose is received next."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain, drained
from tracelake.dispatcher.control import Control
from tracelake.ports import Outgoing

pytestmark = pytest.mark.anyio

NORMAL, BULK = "tasks-ecs_platform", "tasks-ecs_platform-bulk"


async def complete_first(control: Control, chain: Chain, cursors: range, *, history: bool = False) -> None:
    """A task of `first` sends so many events: each wakes a task of `second`."""
    task = await a_task(control, chain)
    await control.pool.execute("UPDATE tasks SET history = $2 WHERE id = $1", task, history)
    source, claims = await claimed(control, task)
    events = [chain.event("first", cursor=cursor) for cursor in cursors]
    await control.completer()(completion(source, events=events), claims)
    await drained(control)


async def received(control: Control, queue: str, most: int = 100) -> list[UUID]:
    """The organisations of the tasks that are woken next, in this order; the wake-ups are acknowledged."""
    found = await control.queue.receive(queue, max_messages=most, visibility=timedelta(minutes=1))
    await control.queue.ack(queue, [delivery.receipt for delivery in found])
    tasks = [UUID(msgspec.json.decode(delivery.body)["task_id"]) for delivery in found]
    rows = await control.pool.fetch("SELECT id, org_id FROM tasks WHERE id = ANY ($1::uuid[])", tasks)
    organisations = {row["id"]: row["org_id"] for row in rows}
    return [organisations[task] for task in tasks]


async def test_each_tier_of_a_runtime_has_its_own_queue(control: Control) -> None:
    chain = await deploy_chain(control)
    await complete_first(control, chain, range(2))
    await complete_first(control, chain, range(10, 13), history=True)
    assert (await control.queue.depth(NORMAL)).ready == 2
    assert (await control.queue.depth(BULK)).ready == 3, "what catches up is bulk, whatever its job is"


async def test_a_retried_task_comes_back_to_its_own_tier(control: Control) -> None:
    chain = await deploy_chain(control)
    await complete_first(control, chain, range(1), history=True)
    assert len(await received(control, BULK)) == 1
    task = await control.pool.fetchval("SELECT id FROM tasks WHERE job_id = $1", chain.jobs["second"])
    await control.pool.execute("UPDATE tasks SET woken_at = NULL WHERE id = $1", task)
    await drained(control)  # as if it had waited for a slot of its job
    assert len(await received(control, BULK)) == 1


async def test_an_organisation_that_floods_a_tier_does_not_delay_another(control: Control) -> None:
    many, few = await deploy_chain(control), await deploy_chain(control, slug="few")
    await complete_first(control, many, range(200))
    await received(control, NORMAL, 50)
    await complete_first(control, few, range(2))
    assert (await received(control, NORMAL, 6)).count(few.org.id) == 2


async def test_a_wake_up_of_an_earlier_version_goes_to_the_runtimes_former_queue(control: Control) -> None:
    """It names neither priority nor job; and what was published before is received like the rest."""
    chain = await deploy_chain(control)
    task = await a_task(control, chain)
    await control.pool.execute(
        "INSERT INTO outbox (org_id, kind, payload) VALUES ($1, 'enqueue_task', $2)",
        chain.org.id,
        {"task_id": str(task), "runtime": "ecs_platform"},
    )
    await control.queue.publish(NORMAL, [Outgoing(msgspec.json.encode({"task_id": task}))])
    await drained(control)
    assert await received(control, NORMAL) == [chain.org.id] * 2
