"""A question has so much time, so many rows and bytes, and its turn. Whatever it does, the service goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.query.conftest import MEGABYTES
from tests.query.house import ROWS, House
from trace_platform.doors import refusal_response
from trace_platform.errors import Busy
from trace_platform.query.slots import Slots

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
        while any(one.numRunningTasks() for one in tracker.getExecutorInfos()):  # noqa: ASYNC110 - Spark's work
            await asyncio.sleep(0.05)


async def test_a_question_that_takes_too_long_is_ended_for_real(house: House) -> None:
    assert await house.refused(ADMIN, FOREVER, timeout_seconds=1.5) == (422, "query_timeout")
    await nothing_runs(house)
    await works(house)


async def test_a_question_whose_asker_hangs_up_is_ended(house: House) -> None:
    headers = {"authorization": f"Bearer {house.token(ADMIN)}"}
    async with httpx.AsyncClient(base_url=house.gateway.base_url, verify=house.context) as impatient:
        patience = httpx.Timeout(120, read=2)
        with pytest.raises(httpx.ReadTimeout):
            await impatient.post("/v1/query", json={"sql": FOREVER}, headers=headers, timeout=patience)
    await house.rig.until("SELECT EXISTS (SELECT FROM query_audit WHERE verdict = 'canceled')")
    await nothing_runs(house)
    await works(house)


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
    await slots.take()
    waits = asyncio.create_task(slots.take())
    await asyncio.sleep(0)
    with pytest.raises(Busy) as refused:
        await slots.take()
    answer = refusal_response(refused.value)
    assert (answer.status_code, refused.value.retryable) == (429, True)
    slots.give_back()
    await waits
    slots.give_back()
    await slots.take()


async def test_who_waits_too_long_is_told_to_come_again() -> None:
    slots = Slots(running=1, waiting=1, seconds=0.01)
    await slots.take()
    for _ in range(2):  # whoever gave up has left his place to the next
        with pytest.raises(Busy):
            await slots.take()
