"""A Dispatcher dies at each commit of catching up and of a backfill: nothing is missing or twice afterwards."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.faults.deaths import dies_at
from tests.support.systems.caller import Caller, calling
from tests.support.systems.processes import System
from tests.support.waiting import until
from tracelake.domain.crash_points import POINTS

pytestmark = pytest.mark.anyio

DAG = """
name: mill
defaults: {{runtime: dispatcher}}
jobs:
  - {{name: ask, operator: noop, source: {{kind: manual}}}}
  - {{name: cut, operator: range_splitter, config: {{chunk: {0}}}, inputs: [{{from: {{job: ask}}}}]}}
  - {{name: end, operator: noop, inputs: [{{from: {{job: cut}}}}]}}
"""
CATCHING_UP = ("activate_dag.after_commit", "catch_up.before_commit", "catch_up.after_commit")
BACKFILLING = (
    "start_backfill.before_commit",
    "start_backfill.after_commit",
    "run_backfill.before_commit",
    "run_backfill.after_commit",
)
CHANGING = ("change_backfill.before_commit", "change_backfill.after_commit")
EVENTS = """
SELECT count(*) FROM events e
  JOIN datasets d ON d.id = e.dataset_uuid AND d.producer_job_name = $1
  JOIN dag_current_versions c ON c.dag_name = 'mill'
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_version = e.dataset_version
"""


async def test_a_dispatcher_dies_at_each_point_and_the_next_one_completes_the_work(system: System) -> None:
    async with calling(system) as caller:
        first = system.dispatcher()
        await caller.activate("mill", await caller.deployed("mill", DAG.format(10)))
        await caller.got("POST", "/dags/mill/jobs/ask/trigger", {"start": 0, "end": 99})
        await until(lambda: complete(caller), "the first version has processed the range")
        version = await caller.deployed("mill", DAG.format(5))
        await first.kill()

        activation = asyncio.create_task(caller.activate("mill", version))
        for point in CATCHING_UP:
            await dies_at(system.dispatcher(point=point), point)
        last = system.dispatcher()
        await activation
        await until(lambda: complete(caller), "the second version has caught up")
        assert await system.pool.fetchval(EVENTS, "end") == 20
        await last.kill()

        body = {"start": 0, "end": 199}
        backfill = asyncio.create_task(caller.got("POST", "/dags/mill/backfills", body))
        for point in BACKFILLING:
            await dies_at(system.dispatcher(point=point), point)
        last = system.dispatcher()
        await backfill
        await until(lambda: complete(caller), "the backfill is done")
        assert await system.pool.fetchval(EVENTS, "ask") == 2, "each block was asked for once"
        assert await system.pool.fetchval(EVENTS, "end") == 40
        await last.kill()

        paused = await system.pool.fetchval(
            "UPDATE backfills SET status = 'Paused', ended_at = NULL, ended_because = NULL"
            " WHERE id = (SELECT min(id::text)::uuid FROM backfills) RETURNING id"
        )
        resumed = asyncio.create_task(caller.user("POST", f"/backfills/{paused}/resume"))
        for point in CHANGING:
            await dies_at(system.dispatcher(point=point), point)
        system.dispatcher()
        status, answer = await resumed
        # Repeated after the crash, the call may find that the resumed backfill has ended already.
        assert status == 200 or "has ended" in answer["error"]["message"], answer
        await until(lambda: complete(caller), "the resumed backfill is done")
        assert await system.pool.fetchval(EVENTS, "end") == 40


async def test_no_point_of_catching_up_and_backfills_is_left_out() -> None:
    steps = {"catch_up", "start_backfill", "run_backfill", "change_backfill"}
    assert {*CATCHING_UP, *BACKFILLING, *CHANGING} >= {point for point in POINTS if point.partition(".")[0] in steps}


async def complete(caller: Caller) -> bool:
    found = await caller.got("GET", "/gaps?of=mill")
    rows = await caller.got("GET", "/backfills")
    return bool(found["complete"]) and all(row["status"] == "Done" for row in rows["backfills"])
