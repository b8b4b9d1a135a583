"""Sail and Spark give the same columns, types and rows for whatever Sail may run."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.cases.engine_parity import GROUP, ROW, SYNTAX, WHOLE, WINDOW, expressions, statement, uses
from tests.support.cases.parity_tables import COLUMNS, DDL, TABLES, write_tables
from tests.support.systems.sail import SailSystem, sail_system
from tracelake.domain.sql.gate import check_sql
from tracelake.query.engine import CannotRun
from tracelake.query.sail.same_functions import SAME
from tracelake.query.sail.supports import why_not
from tracelake.spark.plan_check import check_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio
Columns = list[tuple[str, str, list[Any]]]
"""The name, type and values of each."""
AT_ONCE = 40


@dataclass
class Engines:
    system: SailSystem
    spark: SparkSession

    async def on_sail(self, text: str) -> Columns | None:
        try:
            result = await self.system.engine.run(self.system.query(text))
        except CannotRun:
            return None
        assert result.table is not None
        names = [(column.name, column.type) for column in result.columns]
        return [(*name, _values(column)) for name, column in zip(names, result.table.columns, strict=True)]

    def on_spark(self, text: str) -> Columns | None:
        from pyspark.errors import PySparkException

        checked = check_sql(text, TABLES, deterministic=False)
        views = {name: f"parity_{name}" for name in TABLES}
        try:
            frame = check_plan(self.spark, checked.render(views), frozenset(views.values())).frame
            table = frame.toArrow()
        except PySparkException:
            return None
        return [
            (field.name, field.dataType.simpleString(), _values(column))
            for field, column in zip(frame.schema.fields, table.columns, strict=True)
        ]

    async def differences(self, text: str) -> list[str]:
        """Return what Sail answers differently; what it refuses is run by Spark, and so no difference."""
        sail = await self.on_sail(text)
        return [] if sail is None else _different(text, sail, self.on_spark(text))

    async def compare(self, use: str, table: str, calls: Sequence[str]) -> Compared:
        """Compare calls as columns of one SELECT. If an engine refuses it, halves are compared, to find which call."""
        text = statement(use, table, calls)
        sail = await self.on_sail(text)
        spark = self.on_spark(text) if sail is not None else None
        if sail is not None and (spark is not None or len(calls) == 1):
            return Compared(frozenset(calls), tuple(_different(text, sail, spark, calls)))
        if len(calls) == 1:
            return Compared()
        half = len(calls) // 2
        return await self.compare(use, table, calls[:half]) + await self.compare(use, table, calls[half:])


@dataclass(frozen=True)
class Compared:
    answered: frozenset[str] = frozenset()
    """The calls that Sail answered."""
    differences: tuple[str, ...] = ()

    def __add__(self, other: Compared) -> Compared:
        return Compared(self.answered | other.answered, self.differences + other.differences)


def _different(text: str, sail: Columns, spark: Columns | None, calls: Sequence[str] = ()) -> list[str]:
    if spark is None:
        return [f"{text}\n  Sail: {sail}\n  Spark refuses it"]
    labels = [*calls, *[text] * (len(sail) - len(calls))]
    triples = zip(labels, sail, spark, strict=True)
    return [f"{label}\n  Sail:  {left}\n  Spark: {right}" for label, left, right in triples if left != right]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Values that can be compared: NaN is NaN, -0.0 is not 0.0, and times may be outside of Python's."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    return [
        (str(value), math.copysign(1, value)) if isinstance(value, float) else value for value in column.to_pylist()
    ]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def engines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engines]:
    folder = tmp_path_factory.mktemp("parity")
    async with sail_system(folder) as system:
        for name, path in write_tables(folder).items():
            system.add(name, pq.read_table(path), {column: type_ for column, (type_, _) in COLUMNS.items()})
            spark.read.schema(DDL).parquet(str(path)).createOrReplaceTempView(f"parity_{name}")
        yield Engines(system, spark)
        for name in TABLES:
            spark.catalog.dropTempView(f"parity_{name}")


@pytest.mark.parametrize("table", TABLES)
async def test_every_function_that_sail_runs_gives_the_same_on_both_engines(engines: Engines, table: str) -> None:
    compared = Compared()
    for use in (ROW, GROUP, WHOLE, WINDOW):
        calls = [call for signature in SAME if use in uses(signature) for call in expressions(signature)]
        for at in range(0, len(calls), AT_ONCE):
            compared += await engines.compare(use, table, calls[at : at + AT_ONCE])
    assert not compared.differences, "\n".join(compared.differences)
    never = [signature for signature in SAME if compared.answered.isdisjoint(expressions(signature))]
    assert not never or table != "plain", f"Sail does not have {never}"


@pytest.mark.parametrize("text", SYNTAX)
async def test_a_statement_gives_the_same_on_both_engines(engines: Engines, text: str) -> None:
    checked = check_sql(text, TABLES, deterministic=False)
    if why_not(checked, engines.system.query(text).relations) is not None:
        return
    differences = await engines.differences(text)
    assert not differences, "\n".join(differences)
