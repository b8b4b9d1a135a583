"""Which engine runs a query: Sail where it gives the same rows, Spark otherwise. The answer and metrics say which."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.systems.query import ROWS, QuerySystem, another_service
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
TOTAL = sum(range(ROWS)) * 10
CHOSEN = {
    "a sum": ("SELECT sum(value) AS s FROM orders", "sail same", [[TOTAL]]),
    "arithmetic": ("SELECT max(value * 2 - 1) AS m FROM orders", "sail same", [[(ROWS - 1) * 20 - 1]]),
    "QUALIFY": (
        "SELECT value FROM orders QUALIFY row_number() OVER (ORDER BY value DESC) = 1",
        "sail same",
        [[(ROWS - 1) * 10]],
    ),
    "PIVOT": (
        "SELECT * FROM (SELECT value FROM orders) PIVOT (count(*) AS n FOR value IN (0 AS none, 10 AS ten))",
        "spark syntax",
        [[1, 1]],
    ),
    "percentiles": (
        "SELECT percentile_approx(value, array(0.0, 1.0)) AS p FROM orders",
        "spark function",
        [[[0, (ROWS - 1) * 10]]],
    ),
    "a sum of doubles": ("SELECT sum(double(value)) AS s FROM orders", "spark function", [[float(TOTAL)]]),
    "a column without a name": ("SELECT max(value + 1) FROM orders", "spark names", [[(ROWS - 1) * 10 + 1]]),
    "a column that Spark names": ("SELECT max(value) FROM orders", "sail same", [[(ROWS - 1) * 10]]),
    "types that are compared": ("SELECT count(*) AS n FROM orders WHERE value = '10'", "spark types", [[1]]),
    "many operations in a row": (
        f"SELECT max(value{' + 1' * 150}) AS m FROM orders",  # noqa: S608 - our own words
        "spark syntax",
        [[(ROWS - 1) * 10 + 150]],
    ),
    "a limit of Sail's": (
        "SELECT max(9223372036854775807 - value) AS m, sum(9223372036854775807) AS s FROM orders WHERE value = 0",
        "spark failed",
        [[2**63 - 1, 2**63 - 1]],
    ),
}


@pytest.mark.parametrize("title", CHOSEN)
async def test_what_sail_runs_the_same_way_runs_there_and_everything_else_on_spark(
    title: str, auto_system: QuerySystem
) -> None:
    sql, chosen, rows = CHOSEN[title]
    before = await auto_system.counters()
    answer = (await auto_system.ask("reader", sql)).json()
    after = await auto_system.counters()
    assert (answer["engine"], answer["rows"]) == (chosen.partition(" ")[0], rows)
    counted = "trace_query_runs_total", chosen
    assert after[counted] - before.get(counted, 0) == 1


async def test_as_many_conditions_as_fit_on_the_stack_are_answered(auto_system: QuerySystem) -> None:
    text = " AND ".join(["value + 1 > 0"] * 450)
    assert await auto_system.rows("reader", f"SELECT count(*) AS n FROM orders WHERE {text}") == [[ROWS]]  # noqa: S608


async def test_an_error_in_values_is_sparks_although_sail_was_asked_first(auto_system: QuerySystem) -> None:
    assert await auto_system.refused("reader", "SELECT value % 0 AS x FROM orders") == (422, "query_failed")
    over = "SELECT 9223372036854775807 + value AS x FROM orders"
    assert await auto_system.refused("reader", over) == (422, "query_failed")


@pytest.mark.parametrize("call", ["mod(value)", "nvl2(value)", "equal_null(value, 1, 2)", "round()"])
async def test_a_call_with_another_number_of_arguments_is_sparks_error(call: str, auto_system: QuerySystem) -> None:
    query = f"SELECT {call} AS x FROM orders"  # noqa: S608 - our own words
    assert await auto_system.refused("reader", query) == (400, "invalid_sql")


async def test_a_function_that_neither_engine_may_run_is_refused_before(auto_system: QuerySystem) -> None:
    query = "SELECT reflect('java.lang.System', 'getenv', 'PATH') AS x FROM orders"
    assert await auto_system.refused("reader", query) == (400, "invalid_sql")


async def test_more_bytes_than_sail_should_read_are_read_by_spark(system: QuerySystem) -> None:
    async with another_service(system, engine="auto", sail_scan_mb=0) as careful:
        answer = (await careful.ask("reader", "SELECT count(*) AS n FROM orders")).json()
        assert (answer["engine"], answer["rows"]) == ("spark", [[ROWS]])
        assert (await careful.counters())["trace_query_runs_total", "spark large"] == 1


async def test_a_setting_pins_sail_and_what_it_does_not_run_is_refused(system: QuerySystem) -> None:
    async with another_service(system, engine="sail") as pinned:
        answer = (await pinned.ask("reader", "SELECT count(*) AS n FROM orders")).json()
        assert (answer["engine"], answer["rows"]) == ("sail", [[ROWS]])
        refusal = await pinned.ask("reader", "SELECT sum(double(value)) AS s FROM orders")
        assert (refusal.status_code, refusal.json()["error"]["message"]) == (422, "Sail does not run it (function)")
        assert "query.engine" in refusal.json()["error"]["hint"]
        assert not [
            labels
            for name, labels in await pinned.counters()
            if name == "trace_query_runs_total" and labels.startswith("spark")
        ]


async def test_a_setting_pins_spark_and_metrics_say_so(system: QuerySystem) -> None:
    before, counted = await system.counters(), ("trace_query_runs_total", "spark pinned")
    answer = (await system.ask("reader", "SELECT count(*) AS n FROM orders")).json()
    assert (system.settings.query.engine, answer["engine"], answer["rows"]) == ("spark", "spark", [[ROWS]])
    assert (await system.counters())[counted] - before.get(counted, 0) == 1


async def test_a_caller_that_hangs_up_leaves_nothing_running_on_sail(system: QuerySystem) -> None:
    """The service pins Sail, so no other engine has it."""
    long = "SELECT count(*) AS n FROM " + ", ".join(f"orders t{n}" for n in range(12)) + " WHERE t0.value <> t1.value"  # noqa: S608
    async with another_service(system, engine="sail") as pinned:
        await pinned.rows("reader", "SELECT count(*) AS n FROM orders")
        asked = asyncio.create_task(pinned.ask("reader", long))

        async def in_progress(count: int) -> bool:
            return (await pinned.counters())["trace_queries_in_progress", "running"] == count

        await until(lambda: in_progress(1), "it runs")
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await until(lambda: in_progress(0), "nothing runs for it")
        assert await pinned.rows("reader", "SELECT count(*) AS n FROM orders") == [[ROWS]]
    await system.operators.until("SELECT EXISTS (SELECT FROM query_audit WHERE verdict = 'canceled')")
