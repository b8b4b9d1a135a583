"""A plan is read node by node, each once: the size grows with the query, however its calls nest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest

from tracelake.domain.sql.gate import check_sql
from tracelake.spark import plan_nodes
from tracelake.spark.plan_check import select
from tracelake.spark.plan_nodes import read_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NESTED = {
    "ELSE": ("CASE WHEN x = 1 THEN 2 ELSE ", " END"),
    "THEN": ("CASE WHEN x = 1 THEN ", " ELSE 3 END"),
    "WHEN": ("CASE WHEN ", " = 1 THEN 2 ELSE 3 END"),
    "nvl": ("nvl(", ", 1)"),
    "zeroifnull": ("zeroifnull(", ")"),
    "nullif": ("nullif(", ", 7)"),
    "if": ("if(x = 1, ", ", 2)"),
}


def nested(case: str, depth: int) -> str:
    before, after = NESTED[case]
    return f"SELECT {before * depth}x{after * depth} AS y FROM t"  # noqa: S608 - a query of a test


@pytest.mark.parametrize("case", NESTED)
def test_each_nested_call_adds_the_same_number_of_plan_nodes(case: str, spark: SparkSession) -> None:
    """Spark's own JSON has two or three times as many for each: at 8 of them it is hundreds of times as long."""
    counts = [nodes_read(spark, nested(case, depth)) for depth in (2, 3, 4, 12)]
    for _, second, third, last in zip(*counts, strict=True):
        assert last - third == 8 * (third - second)


def nodes_read(spark: SparkSession, query: str) -> tuple[int, int]:
    """As parsed, and as analysed."""
    session = spark.newSession()
    session.sql("SELECT 1 AS x").createTempView("t")
    java = session._jsparkSession
    analysed = java.sql(query).queryExecution().analyzed()
    return len(read_plan(session, java.sessionState().sqlParser().parsePlan(query))), len(read_plan(session, analysed))


@pytest.mark.parametrize("case", NESTED)
def test_a_job_may_nest_thirty_calls(case: str, spark: SparkSession) -> None:
    checked = check_sql(nested(case, 30), {"t"}, bounded=False)
    rows = select(spark, checked, {"t": spark.sql("SELECT 5 AS x")})
    assert rows.columns == ["y"]


def test_columns_of_a_having_inside_of_functions_are_accepted(spark: SparkSession) -> None:
    """Spark leaves a mark of its analysis around them."""
    text = "SELECT x FROM t GROUP BY x HAVING every(equal_null(z, z)) IS NOT NULL"
    checked = check_sql(text, {"t"}, bounded=False)
    rows = select(spark, checked, {"t": spark.sql("SELECT 5 AS x, 6 AS z")})
    assert [tuple(row) for row in rows.collect()] == [(5,)]


def test_threads_that_read_the_first_plan_concurrently_can_read_more_plans(spark: SparkSession) -> None:
    """Each may compile its own reader, and later use the reader of another."""
    plan_nodes._reader.cache_clear()
    plan = spark._jsparkSession.sql("SELECT 1 AS x").queryExecution().analyzed()
    together = Barrier(4)

    def read() -> list[int]:
        together.wait()
        first = len(read_plan(spark, plan))
        together.wait()
        return [first, len(read_plan(spark, plan))]

    with ThreadPoolExecutor(4) as threads:
        found = [running.result() for running in [threads.submit(read) for _ in range(4)]]
    assert found == [[4, 4]] * 4
