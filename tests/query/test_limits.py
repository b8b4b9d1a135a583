"""Limits of time, rows, bytes and slots of a query; the service survives every query."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.query.conftest import MEGABYTES
from tests.support.systems.query import FOREVER, ROWS, QuerySystem
from tests.support.systems.walk import TOKEN
from tests.support.waiting import SECONDS, until
from tracelake.errors import Busy
from tracelake.query.slots import Slots
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.listeners import refusal_response

pytestmark = pytest.mark.anyio
ADMIN = "test|acme"


async def works(system: QuerySystem) -> None:
    assert await system.rows(ADMIN, "SELECT count(*) AS n FROM orders") == [[ROWS]]


async def nothing_runs(system: QuerySystem) -> None:
    """The task of a canceled job may run forever, so cores are counted, not jobs."""
    context: Any = system.operators.spark.sparkContext
    tracker = context._jsc.sc().statusTracker()
    await until(
        lambda: not any(getexecutorinfo.numRunningTasks() for getexecutorinfo in tracker.getExecutorInfos()),
        "Spark runs no task",
    )


async def test_a_query_over_its_time_limit_is_ended_in_spark(system: QuerySystem) -> None:
    assert await system.refused(ADMIN, FOREVER, timeout_seconds=1.5) == (504, "query_timeout")
    await nothing_runs(system)
    await works(system)


async def test_a_query_whose_caller_disconnects_is_ended(system: QuerySystem) -> None:
    headers = {"authorization": f"Bearer {system.token(ADMIN)}"}
    async with AsyncClient(base_url=system.gateway.base_url, verify=system.context) as impatient:
        short_timeout = httpx.Timeout(120, read=2)
        with pytest.raises(httpx.ReadTimeout):
            await impatient.post("/v1/query", json={"sql": FOREVER}, headers=headers, timeout=short_timeout)
    await system.operators.until("SELECT EXISTS (SELECT FROM query_audit WHERE verdict = 'canceled')")
    await nothing_runs(system)
    await works(system)


async def test_slots_for_users_are_not_given_to_tasks(system: QuerySystem) -> None:
    """Tasks take two of three slots, however many queries they send; a user gets the third at once."""
    await system.make("feed", 3000, 3001)
    claimed = await system.claimed()
    sql = FOREVER.replace("orders", "hide")
    tasks = [asyncio.create_task(system.ask_as(claimed, sql)) for _ in range(4)]
    try:
        await until_counted(system, running=2, waiting=2)
        user = asyncio.create_task(works(system))
        await until_counted(system, running=3, waiting=2)
    finally:
        for item in tasks:
            item.cancel()
        await asyncio.wait(tasks)
    await user  # it had its slot, and now the cores
    await until_counted(system, running=0, waiting=0)


async def until_counted(system: QuerySystem, **wanted: int) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            answer = await system.query_internal.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
            counts = dict(re.findall(r'^trace_queries_in_progress{state="(\w+)"} (\S+)$', answer.text, re.MULTILINE))
            if {state: int(float(count)) for state, count in counts.items()} == wanted:
                return
            await asyncio.sleep(0.05)


async def test_results_with_too_many_bytes_are_refused_before_they_are_collected(system: QuerySystem) -> None:
    wide = "SELECT repeat('x', 10000) AS x FROM orders a, orders b, orders c, orders d"
    assert await system.refused(ADMIN, wide) == (422, "result_too_large")
    assert MEGABYTES * 1024 * 1024 < ROWS**4 * 10_000
    await works(system)


@pytest.mark.parametrize(
    "bomb",
    [
        "SELECT explode(sequence(1, 900000000000)) AS x",
        "SELECT sequence(block_number, block_number * 1000000) AS x FROM orders",
        "SELECT repeat('x', 1000000000) AS x",
        "SELECT space(1000000000) AS x",
        "SELECT array_repeat(value, 1000000000) AS x FROM orders",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT * FROM r",
        "SELECT * FROM range(9000000000000000000)",
        "SELECT " + ", ".join(f"1 c{n}" for n in range(10_000)) + " FROM orders",  # noqa: S608 - a query of a test
    ],
)
async def test_a_bomb_is_refused_before_it_runs(system: QuerySystem, bomb: str) -> None:
    assert await system.refused(ADMIN, bomb) == (400, "invalid_sql")
    await works(system)


async def test_a_result_with_too_many_columns_is_refused(system: QuerySystem) -> None:
    wide = "SELECT " + ", ".join(f"value AS c{n}" for n in range(2_500)) + " FROM orders"  # noqa: S608 - a query of a test
    assert await system.refused(ADMIN, wide) == (422, "result_too_large")
    await works(system)


async def test_a_query_beyond_the_waiting_limit_is_refused_as_retryable() -> None:
    slots = Slots(running=1, waiting=1, seconds=60)
    await slots.take("user")
    waits = asyncio.create_task(slots.take("user"))
    await asyncio.sleep(0)
    with pytest.raises(Busy) as refused:
        await slots.take("user")
    answer = refusal_response(refused.value)
    assert (answer.status_code, refused.value.retryable) == (429, True)
    slots.give_back("user")
    await waits
    slots.give_back("user")
    await slots.take("user")


async def test_waiting_tasks_do_not_displace_users_and_a_freed_slot_goes_to_an_eligible_query() -> None:
    slots = Slots(running=2, waiting=1, seconds=60, for_users=1)
    await slots.take("task")
    task = asyncio.create_task(slots.take("task"))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await slots.take("task")
    await slots.take("user")
    user = asyncio.create_task(slots.take("user"))
    await asyncio.sleep(0)
    slots.give_back("user")
    await user
    assert not task.done(), "though it waited longer"
    slots.give_back("task")
    await task
    assert (slots.running, slots.waiting) == (2, 0)


async def test_a_cancelled_waiter_releases_its_place() -> None:
    slots = Slots(running=1, waiting=1, seconds=60)
    await slots.take("user")
    for given_before in (False, True):
        waits = asyncio.create_task(slots.take("user"))
        await asyncio.sleep(0)
        if given_before:
            slots.give_back("user")
        waits.cancel()
        await asyncio.wait({waits})
    assert (slots.running, slots.waiting) == (0, 0)


async def test_a_query_that_waits_too_long_for_a_slot_is_refused_as_retryable() -> None:
    slots = Slots(running=1, waiting=1, seconds=0.01)
    await slots.take("user")
    for _ in range(2):  # a waiter that gave up has freed its place
        with pytest.raises(Busy):
            await slots.take("user")
