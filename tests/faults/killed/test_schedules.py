"""Schedulers and Dispatchers die wherever they can while slots come due: every slot fires once."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.faults.deaths import SOURCES, dies_at
from tests.support.systems.caller import Caller, calling
from tests.support.systems.processes import System
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

DAG = """
name: desk
defaults: {runtime: parked}
jobs:
  - {name: load, operator: works, source: {kind: cron, schedule: "* * * * *", overlap: allow, catch_up: 2d}}
  - {name: tick, operator: noop, runtime: dispatcher, source: {kind: cron, schedule: "rate(1 minute)", catch_up: 2d}}
"""
HOUR = 60
AT_SCHEDULES = [item for item in SOURCES if item.startswith(("scheduler.", "fire_schedules."))]


async def deploy(caller: Caller) -> None:
    await caller.activate("desk", await caller.deployed("desk", DAG.replace("parked", "ecs_platform")))


async def an_hour_passes(system: System) -> None:
    """The next hour of slots is due: what was decided until now is as if it were an hour older."""
    async with system.pool.acquire() as connection, connection.transaction():
        for statement in (
            "UPDATE source_schedules SET decided_until = decided_until - interval '1 hour', due_at = now()",
            "UPDATE source_slots SET slot = slot - interval '100 days'",
            "UPDATE source_slots SET slot = slot + interval '100 days' - interval '1 hour'",
            "UPDATE tasks SET dedupe_key = gen_random_uuid()::text",
            "UPDATE events SET producer_run_id = gen_random_uuid()",
        ):
            await connection.execute(statement)


async def caught_up(system: System) -> bool:
    return bool(await system.pool.fetchval("SELECT bool_and(due_at > now()) FROM source_schedules"))


async def assert_once_each(system: System) -> None:
    """A row for each minute since the first, a task or an event for each that fired, and no others."""
    slots = await system.pool.fetch(
        "SELECT job_name, count(*) AS slots, count(reason) AS unfired, count(task_id) AS tasks,"
        " extract(epoch FROM max(slot) - min(slot))::bigint / 60 + 1 AS minutes FROM source_slots GROUP BY 1 ORDER BY 1"
    )
    load, tick = slots
    assert load["slots"] == load["minutes"] == load["tasks"] == await system.pool.fetchval("SELECT count(*) FROM tasks")
    assert tick["slots"] == tick["minutes"] == await system.pool.fetchval("SELECT count(*) FROM events")
    assert (load["unfired"], tick["unfired"], tick["tasks"]) == (0, 0, 0)


async def test_every_slot_fires_once_wherever_schedulers_and_dispatchers_die(system: System) -> None:
    async with calling(system) as caller:
        dispatcher = system.dispatcher()
        await deploy(caller)
        await dispatcher.kill()
        for point in AT_SCHEDULES:
            await an_hour_passes(system)
            at_scheduler = point.startswith("scheduler.")
            dispatcher = system.dispatcher(point=None if at_scheduler else point)
            scheduler = system.scheduler(point=point if at_scheduler else None)
            await dies_at(scheduler if at_scheduler else dispatcher, point)
            await asyncio.gather(*(child.kill() for child in (scheduler, dispatcher) if child.alive()))
        system.dispatcher()
        system.scheduler()
        await until(lambda: caught_up(system), "all slots are decided")
    await assert_once_each(system)
    assert await system.pool.fetchval("SELECT count(*) FROM source_slots") >= 2 * HOUR * len(AT_SCHEDULES)


async def test_two_schedulers_at_two_dispatchers_fire_every_slot_once(system: System) -> None:
    async with calling(system, replicas=2) as caller:
        for replica in (0, 1):
            system.dispatcher(replica=replica)
            await caller.until_ready(replica)
        await deploy(caller)
        for hour in range(4):
            await an_hour_passes(system)
            if hour == 0:
                for replica in (0, 1):
                    system.scheduler(replica=replica)
            await system.pool.execute("NOTIFY trace_control, 'schedules'")
            await until(lambda: caught_up(system), "all slots are decided")
    await assert_once_each(system)
