"""Limits of organisations at the Query service: how many queries of one run and wait, and what others notice of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from tests.support.systems.query import FOREVER, ROWS, QuerySystem, another_service
from tests.support.waiting import until
from tracelake.errors import Busy
from tracelake.query.limits.engine_seconds import EngineSeconds
from tracelake.query.limits.org_limits import OrgTurns
from tracelake.query.spark.sessions import Sessions
from tracelake.wire.internal.queries import QueryLimits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio
ADMIN, RIVAL = "test|acme", "test|rival"
COUNT = "SELECT count(*) AS n FROM orders"


async def limit(system: QuerySystem, **limits: int | str) -> None:
    """Set by the platform admin; the Dispatcher sends limits with the tables of a query, a second old at most."""
    pool = system.operators.walk.control.pool
    await pool.execute("UPDATE users SET platform_admin = true WHERE external_id = $1", ADMIN)
    headers = {"authorization": f"Bearer {system.token(ADMIN)}"}
    answer = await system.gateway.patch("/v1/orgs/acme/limits", json={"limits": limits}, headers=headers)
    assert answer.status_code == 200, answer.text


async def runs(system: QuerySystem, count: int) -> bool:
    return (await system.counters())["trace_queries_in_progress", "running"] == count


async def test_queries_above_the_limit_of_an_organisation_are_429_and_another_one_is_served(
    system: QuerySystem,
) -> None:
    await limit(system, queries=1, queries_waiting=1)
    running: list[asyncio.Task[Any]] = []
    try:

        async def refused() -> bool:
            """One that runs and one that waits; the limit is known a second after it was set."""
            running.append(asyncio.create_task(system.ask(ADMIN, FOREVER)))
            done, _ = await asyncio.wait(running, timeout=0.2)
            return bool(done)

        await until(refused, "a query above the limit is refused")
        answer = next(task for task in running if task.done()).result()
        assert answer.status_code == 429, answer.text
        error = answer.json()["error"]
        assert (error["code"], error["retryable"]) == ("busy", True)
        assert "the organisation's limit: 1 queries run (queries)" in error["message"]
        assert int(answer.headers["retry-after"]) >= 1
        rival = asyncio.create_task(system.rows(RIVAL, COUNT))
        await until(lambda: runs(system, 2), "a query of another organisation has a slot at once")
        await limit(system, queries="none", queries_waiting="none")

        async def more() -> bool:
            running.append(asyncio.create_task(system.ask(ADMIN, FOREVER)))
            return (await system.counters())["trace_queries_in_progress", "waiting"] > 0

        await until(more, "once the limit is taken away, its queries wait for slots that all share")
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await limit(system, queries="default", queries_waiting="default")
    await rival  # it had its slot, and now the cores
    await system.until_nothing_runs()
    assert await system.rows(ADMIN, COUNT) == [[ROWS]]


async def test_the_seconds_of_an_organisation_are_used_up_by_spark_for_sail_too_and_another_one_is_served(
    system: QuerySystem,
) -> None:
    on_spark = FOREVER.replace("sum(", "stddev(")
    async with another_service(system, engine="auto") as both:
        try:
            await limit(both, query_seconds=1)

            async def used_up() -> bool:
                """The limit is known a second after it was set."""
                return (await both.refused(ADMIN, on_spark, timeout_seconds=2)) != (504, "query_timeout")

            await until(used_up, "queries are refused")
            answer = await both.ask(ADMIN, COUNT)
            assert answer.status_code == 429, answer.text
            assert "ran for more than 1 s in a minute" in answer.json()["error"]["message"]
            assert int(answer.headers["retry-after"]) >= 1
            assert (await both.ask(RIVAL, COUNT)).json()["engine"] == "sail"
        finally:
            await limit(both, query_seconds="default")
        await both.until_nothing_runs()


@dataclass
class Case:
    """Queries of one organisation that last until `go` is set, in the order in which they begin."""

    turns: OrgTurns
    org: UUID = field(default_factory=uuid4)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    order: list[str] = field(default_factory=list)

    async def run(self, name: str, most: int = 1) -> None:
        async with self.turns.turn(self.org, QueryLimits(queries=most)):
            self.order.append(name)
            await self.go.wait()

    def start(self, name: str, most: int = 1) -> asyncio.Task[None]:
        return asyncio.create_task(self.run(name, most))


async def test_a_raised_limit_lets_the_waiting_queries_of_an_organisation_begin_in_order() -> None:
    case = Case(OrgTurns(5, 600))
    tasks = [case.start(name) for name in "abcd"]
    await until(lambda: case.order == ["a"], "one runs")
    tasks.append(case.start("e", most=3))
    await until(lambda: case.order == ["a", "b", "c"], "those that waited begin before it")
    case.go.set()
    await asyncio.gather(*tasks)
    assert case.order == ["a", "b", "c", "d", "e"]
    assert not case.turns._running
    assert not case.turns._waiting


async def test_who_gives_up_waiting_leaves_its_place_and_takes_no_turn() -> None:
    case = Case(OrgTurns(1, 600))
    first = case.start("first")
    await until(lambda: case.order == ["first"], "it runs")
    gone = case.start("gone")
    await until(lambda: bool(case.turns._waiting[case.org]), "it waits")
    with pytest.raises(Busy, match="1 wait"):
        await case.run("too many")
    gone.cancel()
    await asyncio.wait({gone})
    following = case.start("next")
    case.go.set()
    await asyncio.gather(first, following)
    assert case.order == ["first", "next"]


async def test_a_turn_that_is_freed_while_a_waiting_query_is_cancelled_goes_to_the_next_one() -> None:
    """Queries with the same time end together: the one that ran and those that waited for its turn."""
    case = Case(OrgTurns(5, 600))
    first, gone, following = (case.start(name) for name in ("first", "gone", "next"))
    await until(lambda: len(case.turns._waiting[case.org]) == 2, "two wait")
    first.cancel()
    gone.cancel()
    await until(lambda: case.order == ["first", "next"], "the one that still waits begins")
    case.go.set()
    await asyncio.wait({first, gone, following})
    assert (first.cancelled(), gone.cancelled(), following.exception()) == (True, True, None)
    assert not case.turns._running
    assert not case.turns._waiting


async def test_one_that_waited_too_long_is_refused() -> None:
    case = Case(OrgTurns(5, 0.01))
    first = case.start("first")
    await until(lambda: case.order == ["first"], "it runs")
    with pytest.raises(Busy):
        await case.run("second")
    case.go.set()
    await first


def test_an_organisation_may_have_its_own_seconds_and_keeps_what_it_used_when_they_change() -> None:
    now = [0.0]
    seconds, org = EngineSeconds(0, lambda: now[0]), uuid4()
    seconds.charge(org, 1000)
    seconds.check(org)  # no limit, nothing is counted
    seconds.charge(org, 11, own=10)
    with pytest.raises(Busy, match="more than 10 s"):
        seconds.check(org, own=10)
    seconds.check(org, own=30)
    with pytest.raises(Busy):
        seconds.check(org, own=5)
    seconds.check(org)  # taken away


def test_an_organisation_keeps_no_more_sessions_than_its_limit(spark: SparkSession) -> None:
    sessions, ours, theirs = Sessions(spark, 10, spare=0), uuid4(), uuid4()
    try:
        for org, most in ((theirs, None), (ours, 2), (theirs, None)):
            held = [sessions.take(("user", uuid4()), org) for _ in range(3)]
            for prepared in held:
                sessions.give_back(prepared, most)
        kept = Counter(session.org_id for session in sessions._idle)
        assert kept == {ours: 2, theirs: 6}
    finally:
        sessions.close()
