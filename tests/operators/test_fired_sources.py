"""Sources that a schedule, a webhook or a user fires do their work: files are read, functions are called."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace

import pytest

from tests.support import ROOT
from tests.support.identity.hook_signatures import sign
from tests.support.systems.operators import OperatorSystem
from tests.support.systems.walk import working
from tests.support.verbs import fire_schedules
from tracelake.dispatcher.sources.accept_hooks import HookCall
from tracelake.domain.sources.signatures import HookScheme
from tracelake.wire.user.sources import FireRequest

pytestmark = pytest.mark.anyio

DAGS = ROOT / "dags"
SECRET = "a_secret_of_the_sales"
PYTHON = """
name: d
defaults: {runtime: ecs_platform, max_attempts: 1}
jobs:
  - name: note
    operator: python
    source: {kind: %s}
    config: {function: "tests.support.spark.functions:noted"}
publish: {noted: {job: note}}
"""


async def a_day_passes(system: OperatorSystem) -> None:
    await system.walk.control.pool.execute(
        "UPDATE source_schedules SET decided_until = now() - interval '23 hours 59 minutes', due_at = now()"
    )


async def test_the_example_reads_files_by_schedule_and_by_webhook(system: OperatorSystem) -> None:
    assert system.resources.folder is not None
    shutil.copytree(DAGS / "data", system.resources.folder, dirs_exist_ok=True)
    await system.deploy((DAGS / "files_schedule.yaml").read_text())
    control = replace(system.walk.control, hook_secrets={"sales": (SECRET,)})
    body = json.dumps({"new": "sales"}).encode()
    call = HookCall("acme", "files_schedule", "sales", sign(HookScheme.STANDARD, body, SECRET, time.time()), body)
    async with working(system.worker()):
        await a_day_passes(system)
        await fire_schedules(control)
        await control.hooks().batched()(call)
        states = await system.settled()
    assert states["sales"] == ["Completed"], await system.error("sales")
    assert set(states.get("products", ["Completed"])) == {"Completed"}
    slots = await system.fetch("SELECT reason FROM source_slots WHERE job_name = 'products'")
    assert len(slots) <= 1  # on the day of 25 hours, none
    assert len(await system.rows("delivered_sales")) == len(["pot", "sugar", "tea"]) + 3
    if slots:
        assert len(await system.rows("scheduled_products")) == 3


@pytest.mark.parametrize("kind", ['cron, schedule: "rate(1 minute)"', "webhook, scheme: hmac, secret: KEY", "manual"])
async def test_a_function_gets_what_fired_its_source(system: OperatorSystem, kind: str) -> None:
    await system.deploy(PYTHON % kind)
    control = system.walk.control
    async with working(system.worker()):
        if kind.startswith("cron"):
            await control.pool.execute(
                "UPDATE source_schedules SET decided_until = date_trunc('minute', now()) - interval '1 minute',"
                " due_at = now()"
            )
            await fire_schedules(control)
        else:
            await control.fire_source().fire(system.walk.org.id, "d", "note", FireRequest(body={"n": [1, "ü"]}))
        states = await system.settled()
    assert set(states["note"]) == {"Completed"}, await system.error("note")
    (row,) = await system.rows("noted")
    assert row["kind"] == kind.split(",", maxsplit=1)[0]
    if kind.startswith("cron"):
        assert row["slot"].endswith(":00+00:00")
    else:
        assert json.loads(row["body"]) == {"n": [1, "ü"]}
