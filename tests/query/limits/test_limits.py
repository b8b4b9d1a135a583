"""Limits of time, rows, bytes and slots of a query; the service survives every query."""

from __future__ import annotations

import asyncio
import re
from uuid import UUID, uuid4

import httpx
import pytest

from tests.support.identity.service_tokens import as_service
from tests.support.systems.query import FOREVER, MEGABYTES, ROWS, QuerySystem
from tests.support.tls import https
from tests.support.waiting import SECONDS, until
from tracelake.errors import Busy
from tracelake.query.limits.slots import Kind, Reserved, Slots
from tracelake.runtime.listeners import refusal_response

pytestmark = pytest.mark.anyio
ADMIN = "test|acme"


async def works(system: QuerySystem) -> None:
    assert await system.rows(ADMIN, "SELECT count(*) AS n FROM orders") == [[ROWS]]


async def test_a_query_over_its_time_limit_is_ended_in_spark(system: QuerySystem) -> None:
    assert await system.refused(ADMIN, FOREVER, timeout_seconds=1.5) == (504, "query_timeout")
    await system.until_nothing_runs()
    await works(system)


async def test_a_query_whose_caller_disconnects_is_ended(system: QuerySystem) -> None:
    headers = {"authorization": f"Bearer {system.token(ADMIN)}"}
    async with https(str(system.gateway.base_url), system.operators.walk.ca) as impatient:
        short_timeout = httpx.Timeout(120, read=2)
        with pytest.raises(httpx.ReadTimeout):
            await impatient.post("/v1/query", json={"sql": FOREVER}, headers=headers, timeout=short_timeout)
    await system.operators.until("SELECT EXISTS (SELECT FROM query_audit WHERE verdict = 'canceled')")
    await system.until_nothing_runs()
    await works(system)


async def test_slots_for_users_are_not_given_to_tasks(system: QuerySystem) -> None:
    """Tasks take two of three slots, however many queries they send; a user gets the third at once."""
    await system.add("feed")
    claimed = await system.claimed()
    sql = FOREVER.replace("orders", "hide")
    await until_counted(system, running=0, waiting=0)  # a query of before keeps its slot while its tasks use cores
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
    seen: list[dict[str, int]] = []

    async def counted() -> bool:
        answer = await system.query_internal.get("/metrics", headers=as_service("monitor"))
        found = re.findall(r'^trace_queries_in_progress{state="(\w+)"} (\S+)$', answer.text, re.MULTILINE)
        counts = {state: int(float(count)) for state, count in found}
        if counts not in seen:
            seen.append(counts)
        return counts == wanted

    try:
        await until(counted, f"{wanted} queries are in progress")
    except TimeoutError as late:
        raise TimeoutError(f"{late}; counts were {seen}") from late


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
    slots = Slots(running=2, waiting=1, seconds=60, kept=Reserved(for_users=1))
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


async def test_a_slot_that_is_freed_while_a_waiter_is_cancelled_goes_to_the_next_one() -> None:
    """Queries with the same time end together: the one that ran and those that waited for its slot."""
    slots = Slots(running=1, waiting=2, seconds=60)
    await slots.take("user")
    gone, waits = (asyncio.create_task(slots.take("user")) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    slots.give_back("user")
    await waits
    with pytest.raises(asyncio.CancelledError):
        await gone
    slots.give_back("user")
    assert (slots.running, slots.waiting) == (0, 0)


async def test_a_query_that_waits_too_long_for_a_slot_is_refused_as_retryable() -> None:
    slots = Slots(running=1, waiting=1, seconds=0.01)
    await slots.take("user")
    for _ in range(2):  # a waiter that gave up has freed its place
        with pytest.raises(Busy):
            await slots.take("user")


async def test_users_leave_tasks_a_slot_and_tasks_leave_users_one_within_an_organisation_too() -> None:
    kept = Reserved(for_users=1, for_tasks=1)
    flooding: list[tuple[Kind, Kind]] = [("user", "task"), ("task", "user")]
    for flood, other in flooding:
        slots, org = Slots(running=4, waiting=9, seconds=60, kept=kept, per_org=3), uuid4()
        many = [asyncio.create_task(slots.take(flood, org)) for _ in range(5)]
        await asyncio.sleep(0)
        assert (slots.running, slots.waiting) == (2, 3), "a third one of the organisation is for the others"
        await slots.take(other, org)
        await ended(many)


async def test_bulk_tasks_leave_a_slot_to_new_data_and_get_their_share_while_both_wait() -> None:
    slots = Slots(running=3, waiting=100, seconds=60, kept=Reserved(for_users=1, for_new_data=1, normal_share=5))
    began = list[Kind]()

    async def query(kind: Kind) -> None:
        await slots.take(kind)
        began.append(kind)

    bulk = [asyncio.create_task(query("bulk")) for _ in range(4)]
    await asyncio.sleep(0)
    assert slots.running == 1, "although no other query runs"
    normal = [asyncio.create_task(query("task")) for _ in range(12)]
    await asyncio.sleep(0)
    assert began == ["bulk", "task"], "the slot that was left to it"
    slots.give_back("bulk")
    for _ in range(12):
        await asyncio.sleep(0)
        slots.give_back(began[-1])
    await asyncio.sleep(0)
    assert 2 <= began[2:].count("bulk") <= 3, "one for every five"
    assert began[2] == "task", "which comes before bulk that has waited longer"
    await ended([*bulk, *normal])


async def test_a_freed_slot_goes_to_the_organisation_that_has_the_fewest() -> None:
    slots, many, few = Slots(running=3, waiting=9, seconds=60), uuid4(), uuid4()
    for _ in range(3):
        await slots.take("user", many)
    waits = [asyncio.create_task(slots.take("user", many)) for _ in range(3)]
    await asyncio.sleep(0)
    other = asyncio.create_task(slots.take("user", few))
    await asyncio.sleep(0)
    slots.give_back("user", many)
    await asyncio.wait_for(other, SECONDS)
    assert slots.waiting == len(waits), "though all of them waited longer"
    await ended(waits)


async def test_a_freed_slot_lets_all_begin_that_waited_for_different_limits() -> None:
    slots = Slots(running=6, waiting=9, seconds=60, kept=Reserved(for_users=4), per_org=3)
    ours, theirs, third = uuid4(), uuid4(), uuid4()
    running: list[tuple[Kind, UUID]] = [("task", ours), ("user", ours), ("user", ours), ("task", third)]
    for kind, org in running:
        await slots.take(kind, org)
    user = asyncio.create_task(slots.take("user", ours))  # waits for its organisation
    task = asyncio.create_task(slots.take("task", theirs))  # waits for a place of a task
    await asyncio.sleep(0)
    assert slots.waiting == 2
    slots.give_back("task", ours)
    await asyncio.wait_for(asyncio.gather(user, task), SECONDS)


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_the_query_of_a_bulk_task_takes_a_slot_of_bulk(system: QuerySystem) -> None:
    """Of three slots one is for users, one for new data, and one is left to bulk."""
    await system.add("feed")
    claimed = await system.claimed()
    await system.operators.walk.control.pool.execute(
        "UPDATE tasks SET priority = 'bulk' WHERE id = $1", claimed.task.task_id
    )
    sql = FOREVER.replace("orders", "hide")
    tasks = [asyncio.create_task(system.ask_as(claimed, sql)) for _ in range(3)]
    try:
        await until_counted(system, running=1, waiting=2)
    finally:
        for item in tasks:
            item.cancel()
        await asyncio.wait(tasks)
    await until_counted(system, running=0, waiting=0)
