"""A query has so much time, so many rows and bytes, and its turn. Whatever it does, the service goes on."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.query.conftest import MEGABYTES
from tests.query.house import ROWS, House
from tests.walk.walking import TOKEN
from tracelake.errors import Busy
from tracelake.query.slots import Slots
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.listeners import refusal_response

pytestmark = pytest.mark.anyio
ADMIN = "test|acme"
GROUPS = "SELECT row_number() OVER (PARTITION BY a.value, b.value ORDER BY a.value) AS r FROM orders a, orders b"
FOREVER = f"SELECT sum(g.r) AS n FROM ({GROUPS}) g, " + ", ".join(f"orders t{n}" for n in range(6))  # noqa: S608 - a query of a test
"""Hours of nested loops; between two groups of the window Spark looks whether it should go on."""


async def works(house: House) -> None:
    assert await house.rows(ADMIN, "SELECT count(*) AS n FROM orders") == [[ROWS]]


async def nothing_runs(house: House) -> None:
    """A canceled job's task may run on for ever, so it is cores that are looked at, not jobs."""
    context: Any = house.rig.spark.sparkContext
    tracker = context._jsc.sc().statusTracker()
    async with asyncio.timeout(60):
        while any(getexecutorinfo.numRunningTasks() for getexecutorinfo in tracker.getExecutorInfos()):  # noqa: ASYNC110 - Spark's work
            await asyncio.sleep(0.05)


async def test_a_question_that_takes_too_long_is_ended_for_real(house: House) -> None:
    assert await house.refused(ADMIN, FOREVER, timeout_seconds=1.5) == (504, "query_timeout")
    await nothing_runs(house)
    await works(house)


async def test_a_question_whose_asker_hangs_up_is_ended(house: House) -> None:
    headers = {"authorization": f"Bearer {house.token(ADMIN)}"}
    async with AsyncClient(base_url=house.gateway.base_url, verify=house.context) as impatient:
        patience = httpx.Timeout(120, read=2)
        with pytest.raises(httpx.ReadTimeout):
            await impatient.post("/v1/query", json={"sql": FOREVER}, headers=headers, timeout=patience)
    await house.rig.until("SELECT EXISTS (SELECT FROM query_audit WHERE verdict = 'canceled')")
    await nothing_runs(house)
    await works(house)


async def test_users_keep_slots_that_tasks_cannot_take(house: House) -> None:
    """Of three slots tasks take two, however many of them ask; a user has the third at once."""
    await house.make("feed", 3000, 3001)
    claimed = await house.claimed()
    sql = FOREVER.replace("orders", "hide")
    tasks = [asyncio.create_task(house.ask_as(claimed, sql)) for _ in range(4)]
    try:
        await in_hand(house, running=2, waiting=2)
        user = asyncio.create_task(works(house))
        await in_hand(house, running=3, waiting=2)
    finally:
        for item in tasks:
            item.cancel()
        await asyncio.wait(tasks)
    await user  # it had its slot, and now the cores
    await in_hand(house, running=0, waiting=0)


async def in_hand(house: House, **wanted: int) -> None:
    async with asyncio.timeout(60):
        while True:
            answer = await house.query_internal.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
            told = dict(re.findall(r'^trace_queries_in_hand{state="(\w+)"} (\S+)$', answer.text, re.MULTILINE))
            if {state: int(float(count)) for state, count in told.items()} == wanted:
                return
            await asyncio.sleep(0.05)


async def test_rows_that_are_too_many_bytes_are_refused_before_they_are_here(house: House) -> None:
    wide = "SELECT repeat('x', 10000) AS x FROM orders a, orders b, orders c, orders d"
    assert await house.refused(ADMIN, wide) == (422, "result_too_large")
    assert MEGABYTES * 1024 * 1024 < ROWS**4 * 10_000
    await works(house)


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
async def test_a_bomb_is_refused_before_it_runs(house: House, bomb: str) -> None:
    assert await house.refused(ADMIN, bomb) == (400, "invalid_sql")
    await works(house)


async def test_more_columns_than_an_answer_has_are_refused(house: House) -> None:
    wide = "SELECT " + ", ".join(f"value AS c{n}" for n in range(2_500)) + " FROM orders"  # noqa: S608 - a query of a test
    assert await house.refused(ADMIN, wide) == (422, "result_too_large")
    await works(house)


async def test_who_finds_no_place_to_wait_is_told_to_come_again() -> None:
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


async def test_tasks_that_wait_take_no_place_from_users_and_a_freed_slot_goes_to_who_may_have_it() -> None:
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


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
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


async def test_who_waits_too_long_is_told_to_come_again() -> None:
    slots = Slots(running=1, waiting=1, seconds=0.01)
    await slots.take("user")
    for _ in range(2):  # whoever gave up has left his place to the next
        with pytest.raises(Busy):
            await slots.take("user")
