"""Sail and Spark give the same columns, types and rows for whatever Sail may run.

What the translation for Sail refuses, and what Sail fails at, is run by Spark: it is counted, and not compared.
`--parity-examples N` compares more made-up expressions, and `--parity-seed` others.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.cases.accepted_calls import accepted_calls, all_calls, is_on_sail
from tests.support.cases.analyst_queries import QUERIES
from tests.support.cases.edge_values import ON_SAIL as EDGES_ON_SAIL
from tests.support.cases.edge_values import ON_SPARK as EDGES_ON_SPARK
from tests.support.cases.engine_parity import (
    FILTERED,
    GROUP,
    REWRITTEN,
    ROW,
    STATEMENTS,
    UNDEFINED_ORDER,
    WHOLE,
    WINDOW,
    expressions,
    uses,
)
from tests.support.cases.made_up_expressions import CLOCKS, MadeUp
from tests.support.cases.made_up_statements import MadeUpStatements
from tests.support.cases.sql_bombs import FINE
from tests.support.query.two_engines import Compared, TwoEngines, two_engines
from tracelake.domain.sql.functions import CLOCKS_AND_CHANCE, FUNCTIONS
from tracelake.query.sail.translate.aggregates import AGGREGATES
from tracelake.query.sail.translate.calls import REWRITTEN as WRITTEN_ANEW
from tracelake.query.sail.translate.expressions import CHOICES
from tracelake.query.sail.translate.same_functions import SAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio
AT_ONCE = 80
COMPARED = [signature for signature in (*SAME, *REWRITTEN) if signature not in CLOCKS]
ON_SAIL = {*AGGREGATES, *CHOICES, *WRITTEN_ANEW}
"""Beside those of `SAME`."""
ONLY_WRITTEN = {"repeat", "sha2"}
"""Their number is not taken from a column: by the gate, and by Sail."""
LEAST = {"plain": 738, "extreme": 707, "nothing": 741, "statements": 138, "analysts": 103, "similar to bombs": 12}
"""As many expressions and statements run on Sail, and were compared. It may rise."""


@pytest.fixture(scope="module")
async def engines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TwoEngines]:
    async with two_engines(spark, tmp_path_factory.mktemp("parity")) as engines:
        yield engines


def test_more_than_five_hundred_statements_are_compared_on_ordinary_and_on_extreme_values() -> None:
    assert min(LEAST["plain"], LEAST["extreme"]) + LEAST["statements"] + LEAST["analysts"] > 500


def test_every_function_that_a_query_may_use_is_compared_or_left_to_spark() -> None:
    """The translation for Sail looks a function up in these tables, and leaves all others to Spark."""
    on_sail = {signature.partition("(")[0] for signature in SAME} | ON_SAIL
    compared = {signature.partition("(")[0] for signature in (*COMPARED, *CLOCKS)}
    assert on_sail == compared
    assert on_sail <= {*FUNCTIONS, *CLOCKS_AND_CHANCE, "unix_timestamp"}, "the gate lets all of them through"
    assert FUNCTIONS - on_sail, "others go to Spark"


def test_a_call_of_any_arguments_passes_or_is_left_to_spark() -> None:
    """`mod(x)` is a mistake that Spark names: an error of the translation itself would be a fault of the service."""
    passing = [call for call in all_calls() if is_on_sail(*call)]
    assert {name for name, _ in passing} <= {*(signature.partition("(")[0] for signature in SAME), *ON_SAIL}


@pytest.mark.parametrize("table", ["plain", pytest.param("extreme", marks=pytest.mark.long)])
async def test_every_call_of_columns_that_passes_gives_the_same_on_both_engines(
    engines: TwoEngines, table: str
) -> None:
    """Also of a function that nobody has listed above: what passes is found by asking the translation."""
    compared, passing = Compared(), accepted_calls()
    for use, calls in passing.items():
        for at in range(0, len(calls), AT_ONCE):
            compared += await engines.compare_columns(use, table, calls[at : at + AT_ONCE])
    assert not compared.differences, "\n".join(compared.differences)
    by_name = {call.partition("(")[0] for calls in passing.values() for call in calls}
    never = by_name - {call.partition("(")[0] for call in compared.same}
    assert never <= ONLY_WRITTEN or table != "plain", f"Sail does not have {sorted(never - ONLY_WRITTEN)}"


@pytest.mark.parametrize("table", ["plain", pytest.param("extreme", marks=pytest.mark.long), "nothing"])
async def test_every_function_that_sail_runs_gives_the_same_on_both_engines(engines: TwoEngines, table: str) -> None:
    compared = Compared()
    for use in (ROW, GROUP, FILTERED, WHOLE, WINDOW):
        calls = [call for signature in COMPARED if use in uses(signature) for call in expressions(signature)]
        for at in range(0, len(calls), AT_ONCE):
            compared += await engines.compare_columns(use, table, calls[at : at + AT_ONCE])
    assert not compared.differences, "\n".join(compared.differences)
    never = [signature for signature in COMPARED if compared.same.isdisjoint(expressions(signature))]
    assert not never or table != "plain", f"Sail does not have {never}"
    assert len(compared.same) >= LEAST[table]


async def test_statements_give_the_same_on_both_engines(engines: TwoEngines) -> None:
    compared = Compared()
    for text in STATEMENTS:
        compared += await engines.compare(text)
    assert not compared.differences, "\n".join(compared.differences)
    assert len(compared.same) >= LEAST["statements"]


@pytest.mark.parametrize("edge", EDGES_ON_SAIL)
async def test_at_each_edge_sail_answers_what_spark_answers_or_leaves_it_to_spark(
    engines: TwoEngines, edge: str
) -> None:
    texts = {*EDGES_ON_SAIL[edge], *EDGES_ON_SPARK[edge]}
    statements = sorted(text for text in texts if text.startswith("SELECT "))
    compared = await engines.compare_columns(ROW, "extreme", sorted(texts.difference(statements)))
    for text in statements:
        compared += await engines.compare(text)
    assert not compared.differences, "\n".join(compared.differences)
    assert compared.same == {*EDGES_ON_SAIL[edge]}, compared.routed
    assert not [reason for reason in compared.routed.values() if reason.startswith("InvalidSql")]


async def test_accepted_queries_that_are_similar_to_bombs_give_the_same_on_both_engines(engines: TwoEngines) -> None:
    rows = {"id": range(1, 9), "name": [f"0x{n}aB" for n in range(8)], "a": [[str(n), "b"][: n % 3] for n in range(8)]}
    types = {"id": "bigint", "name": "string", "a": "array<string>"}
    engines.add("granted", pa.table(rows), types)
    compared = Compared()
    for text in FINE.values():
        compared += await engines.compare(text)
    assert not compared.differences, "\n".join(compared.differences)
    assert len(compared.same) >= LEAST["similar to bombs"]


@pytest.mark.long
async def test_the_queries_of_analysts_give_the_same_on_both_engines(engines: TwoEngines) -> None:
    compared = Compared()
    for title in QUERIES.keys() - UNDEFINED_ORDER:
        compared += await engines.compare(QUERIES[title])
    assert not compared.differences, "\n".join(compared.differences)
    assert len(compared.same) >= LEAST["analysts"]


@pytest.mark.long
async def test_made_up_expressions_give_the_same_on_both_engines(
    engines: TwoEngines, request: pytest.FixtureRequest
) -> None:
    examples = int(request.config.getoption("--parity-examples"))
    source = random.Random(int(request.config.getoption("--parity-seed")))  # noqa: S311 - the same ones by the same seed
    made, compared = MadeUp(source), Compared()
    while compared.count < examples:
        use, columns = made.statement(20)
        for table in ("many", "extreme"):
            compared += await engines.compare_columns(use, table, columns)
    assert not compared.differences, "\n".join(compared.differences)
    assert len(compared.same) > examples // 4, "most of it was not compared"


@pytest.mark.long
async def test_made_up_statements_give_the_same_on_both_engines(
    engines: TwoEngines, request: pytest.FixtureRequest
) -> None:
    examples = int(request.config.getoption("--parity-examples")) // 8
    made, compared = MadeUpStatements(int(request.config.getoption("--parity-seed"))), Compared()
    while compared.count < examples:
        compared += await engines.compare(made.statement())
    assert not compared.differences, "\n".join(compared.differences)
    assert len(compared.same) > examples // 4, "most of it was not compared"
