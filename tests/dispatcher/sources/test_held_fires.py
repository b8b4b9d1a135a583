"""Sources that are fired while a queue downstream is too long: their tasks are created, and wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.dispatcher.control import PULL, WORKS, Org, an_org, control_for, deployed_and_active
from tests.support.dispatcher.job_chain import claimed, completion, drained
from tests.support.operators import registered
from tests.support.verbs import fire_schedules
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.flow.apply_pressure import ApplyPressure
from tracelake.dispatcher.why.explain import explain_task
from tracelake.settings import FlowSettings
from tracelake.wire.task.outputs import EventBody
from tracelake.wire.user.sources import FireRequest

pytestmark = pytest.mark.anyio

DAG = """
name: desk
defaults: {runtime: ecs_platform}
jobs:
  - {name: by_hand, operator: works, source: {kind: manual}}
  - {name: by_call, operator: works, source: {kind: webhook, scheme: hmac, secret: shop_key}}
  - {name: by_time, operator: works, source: {kind: cron, schedule: "* * * * *", overlap: allow}}
  - name: slow
    operator: pull
    max_queue_depth: 3
    inputs: [{from: {job: by_hand}}, {from: {job: by_call}}, {from: {job: by_time}}]
"""
SOURCES = ("by_call", "by_hand", "by_time")
BY_JOB = """
SELECT j.name, t.id, t.woken_at IS NOT NULL AS woken
  FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE t.status = 'Queued' AND j.name = ANY ($1::text[]) ORDER BY j.name, t.id
"""


@pytest.fixture
async def control(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Control]:
    with registered(pull=PULL, works=WORKS):
        async with control_for(state_db, queue_db, tmp_path) as opened:
            yield replace(opened, hook_secrets={"shop_key": ("the_secret_of_the_shop",)})


@pytest.fixture
async def org(control: Control) -> Org:
    made = await an_org(control.pool)
    await deployed_and_active(control, made, DAG)
    return made


async def fire_all(control: Control, org: Org, minutes: int = 1) -> None:
    for job in ("by_hand", "by_call"):
        await control.fire_source().fire(org.id, "desk", job, FireRequest(body=[1]))
    await control.pool.execute(
        "UPDATE source_schedules SET due_at = now(),"
        " decided_until = date_trunc('minute', now()) - make_interval(mins => $1)",
        minutes,
    )
    await fire_schedules(control)
    await drained(control)


async def tasks(control: Control, *jobs: str) -> list[tuple[str, bool]]:
    return [(row["name"], row["woken"]) for row in await control.pool.fetch(BY_JOB, list(jobs))]


async def complete(control: Control, job: str, most: int, events: int = 0) -> None:
    for row in (await control.pool.fetch(BY_JOB, [job]))[:most]:
        task, claims = await claimed(control, row["id"])
        (output,) = task.task.outputs if events else (None,)
        sent = [
            EventBody(dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, cursor=cursor)
            for cursor in range(events)
            if output
        ]
        await control.completer()(completion(task, events=sent), claims)
    await drained(control)


async def a_pass(control: Control) -> None:
    await ApplyPressure(control.pool, control.after_commit, FlowSettings()).once()
    await drained(control)


async def test_a_source_fired_under_pressure_has_a_task_that_waits_until_the_queue_is_short(
    control: Control, org: Org
) -> None:
    await fire_all(control, org)
    assert await tasks(control, *SOURCES) == [(job, True) for job in SOURCES]
    await complete(control, "by_hand", 1, events=4)
    assert len(await tasks(control, "slow")) == 4
    await a_pass(control)
    await fire_all(control, org, minutes=2)
    held = [("by_call", True), ("by_call", False), ("by_hand", False), ("by_time", True), ("by_time", False)]
    assert await tasks(control, *SOURCES) == held, "what was woken before stays so"
    waiting = (await control.pool.fetch(BY_JOB, ["by_hand"]))[0]["id"]
    explained = await explain_task(control.pool, org.id, waiting)
    assert explained.stopped is not None
    assert explained.stopped.rule == "held_by_pressure"
    await complete(control, "slow", 3)
    await a_pass(control)
    assert all(woken for _, woken in await tasks(control, *SOURCES))
    assert len(await tasks(control, *SOURCES)) == 5, "none is lost, none is made twice"
