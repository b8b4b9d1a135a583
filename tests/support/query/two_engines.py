"""Spark and Sail over the same files, to compare what they answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.support.cases.analyst_queries import quick_session
from tests.support.cases.analyst_queries import tables as analyst_tables
from tests.support.cases.engine_parity import FILTER, FILTERED, OVER, WINDOW
from tests.support.cases.parity_tables import COLUMNS, FILES, ROW_GROUP, arrow_tables
from tests.support.query.sail import SailSystem, sail_system
from tracelake.domain.sql.gate import check_sql
from tracelake.errors import InvalidSql
from tracelake.query.engine import CannotRun
from tracelake.query.sail.translate.translate import translated
from tracelake.query.sail.translate.types import NotOnSail
from tracelake.spark.plan_check import check_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_ROWS = 100_000
"""More than any join of two tables has: rows that are cut off would be others."""
PLAIN = "plain"
Columns = list[tuple[str, str, list[Any]]]
"""The name, type and values of each."""


@dataclass(frozen=True)
class Compared:
    """What was compared: statements, or expressions."""

    same: frozenset[str] = frozenset()
    routed: dict[str, str] = field(default_factory=dict)
    """Those that Spark runs, and why."""
    differences: tuple[str, ...] = ()

    def __add__(self, other: Compared) -> Compared:
        return Compared(self.same | other.same, self.routed | other.routed, self.differences + other.differences)

    @property
    def count(self) -> int:
        return len(self.same) + len(self.routed) + len(self.differences)


@dataclass
class TwoEngines:
    system: SailSystem
    spark: SparkSession
    _refused: dict[str, str | None] = field(default_factory=dict)
    """By statement: why Sail does not run it."""

    async def compare(self, text: str) -> Compared:
        """Compare the rows of a statement, in any order unless it asks for one."""
        try:
            sail = await self._on_sail(text)
        except (NotOnSail, CannotRun, InvalidSql) as error:
            return Compared(routed={text: f"{type(error).__name__} {error}"})
        try:
            spark = self._on_spark(text)
        except InvalidSql as error:  # by the check of its plan
            return Compared(routed={text: f"Spark: {error}"})
        if spark is None and not any(values for *_, values in sail):  # a constant that fails, though no row needs it
            return Compared(routed={text: "Spark fails, and Sail finds no rows"})
        if spark is None:
            return Compared(differences=(f"{text}\n  Sail: {sail}\n  Spark refuses it",))
        tree = check_sql(text, self.system.relations, deterministic=False).tree
        if _comparable(sail, tree) == _comparable(spark, tree):
            return Compared(frozenset({text}))
        return Compared(differences=(f"{text}\n  Sail:  {sail}\n  Spark: {spark}",))

    async def compare_columns(self, use: str, table: str, expressions: Sequence[str]) -> Compared:
        """Compare expressions as columns of one SELECT, as far as Sail answers them."""
        refused = {item: reason for item in expressions if (reason := self._why_not(use, item))}
        on_sail, failed = await self._answered(use, table, [item for item in expressions if item not in refused])
        on_spark = self._on_spark_each(use, table, list(on_sail))
        differences = [
            f"{item} ({table})\n  Sail:  {answer}\n  Spark: {on_spark[item]}"
            for item, answer in on_sail.items()
            if answer != on_spark[item]
        ]
        same = frozenset(item for item, answer in on_sail.items() if answer == on_spark[item])
        return Compared(same, refused | failed, tuple(differences))

    async def _answered(
        self, use: str, table: str, expressions: Sequence[str]
    ) -> tuple[dict[str, tuple[str, list[Any]]], dict[str, str]]:
        """Return what Sail answers to each, and why it fails at others. If it answers none, halves are tried."""
        if not expressions:
            return {}, {}
        try:
            columns = await self._on_sail(_statement(use, table, expressions))
        except (CannotRun, NotOnSail) as error:  # also for two expressions that cannot be in one statement
            if len(expressions) == 1:
                return {}, {expressions[0]: f"fails: {error}"}
            half = len(expressions) // 2
            parts = (expressions[:half], expressions[half:])
            left, right = await asyncio.gather(*(self._answered(use, table, part) for part in parts))
            return left[0] | right[0], left[1] | right[1]
        return {item: column[1:] for item, column in zip(expressions, columns, strict=False)}, {}

    def _why_not(self, use: str, expression: str) -> str | None:
        """Of any table: they have the same columns."""
        text = _statement(use, PLAIN, [expression])
        if text not in self._refused:
            try:
                query = self.system.query(text)
                translated(query.checked, query.relations)
            except (NotOnSail, InvalidSql) as error:
                self._refused[text] = f"{type(error).__name__}: {error}"
            else:
                self._refused[text] = None
        return self._refused[text]

    def _on_spark_each(self, use: str, table: str, expressions: Sequence[str]) -> dict[str, Any]:
        if not expressions:
            return {}
        columns = self._on_spark(_statement(use, table, expressions))
        if columns is not None:
            return {item: column[1:] for item, column in zip(expressions, columns, strict=False)}
        if len(expressions) == 1:
            return {expressions[0]: "refuses it"}
        half = len(expressions) // 2
        parts = (expressions[:half], expressions[half:])
        return {key: value for part in parts for key, value in self._on_spark_each(use, table, part).items()}

    async def _on_sail(self, text: str) -> Columns:
        query = self.system.query(text)
        for_sail = translated(query.checked, query.relations)
        result = await self.system.engine.run(self.system.of(for_sail.checked, max_rows=MOST_ROWS))
        assert result.table is not None
        assert not result.truncated, text
        columns = [(column.name, column.type) for column in result.columns]
        if [type_ for _, type_ in columns] != for_sail.types:
            raise CannotRun("types")
        return [(*column, _values(values)) for column, values in zip(columns, result.table.columns, strict=True)]

    def _on_spark(self, text: str) -> Columns | None:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        checked = check_sql(text, self.system.relations, deterministic=False)
        views = {name: f"parity_{name}" for name in self.system.relations}
        try:
            frame = check_plan(self.spark, checked.render(views), frozenset(views.values())).frame
            table = frame.toArrow()
        except (PySparkException, Py4JJavaError):
            return None
        return [
            (item.name, item.dataType.simpleString(), _values(column))
            for item, column in zip(frame.schema.fields, table.columns, strict=True)
        ]

    def add(self, name: str, table: pa.Table, columns: dict[str, str]) -> None:
        """Store a table in several files, and show the same files to both engines."""
        relation = self.system.add(name, table, columns, files=FILES if table.num_rows else 1, row_group=ROW_GROUP)
        assert relation.cold is not None
        paths = [str(self.system.objects.for_spark(item)) for item in relation.cold.files]
        ddl = ", ".join(f"`{column}` {type_}" for column, type_ in columns.items())
        self.spark.read.schema(ddl).parquet(*paths).createOrReplaceTempView(f"parity_{name}")


@asynccontextmanager
async def two_engines(spark: SparkSession, folder: Path) -> AsyncIterator[TwoEngines]:
    """Both engines, with the tables of `parity_tables` and those of the analysts."""
    async with sail_system(folder, sail_idle_seconds=600.0) as system:
        own = quick_session(spark)
        engines = TwoEngines(system, own)
        for name, table in arrow_tables().items():
            engines.add(name, table, {column: type_ for column, (type_, _) in COLUMNS.items()})
        for name, frame in analyst_tables(own).items():
            engines.add(
                name, frame.toArrow(), {item.name: item.dataType.simpleString() for item in frame.schema.fields}
            )
        yield engines
        spark.createDataFrame([(1,)], "n int")  # makes it the active session again


def _statement(use: str, table: str, expressions: Sequence[str]) -> str:
    more = {WINDOW: f" {OVER}", FILTERED: f" {FILTER}"}.get(use, "")
    columns = ", ".join(f"{item}{more} AS c{at}" for at, item in enumerate(expressions))
    return use.format(columns=columns, table=table)


def _comparable(columns: Columns, tree: Any) -> list[Any]:
    """Names and types, the rows in any order, and the order of what the query sorts by: equal rows have none."""
    order = tree.args.get("order")
    keys = {item.this.name.casefold() for item in order.expressions} if order is not None else set()
    sorted_by = [
        values for at, (name, _, values) in enumerate(columns, 1) if name.casefold() in keys or str(at) in keys
    ]
    rows = sorted(zip(*(values for _, _, values in columns), strict=True), key=repr)
    return [[column[:2] for column in columns], rows, sorted_by]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Values that can be compared: NaN is NaN, -0.0 is not 0.0, and times may be outside of Python's."""
    if pa.types.is_temporal(column.type) and not pa.types.is_duration(column.type):
        column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    return [
        ("NaN" if math.isnan(value) else (value, math.copysign(1, value))) if isinstance(value, float) else value
        for value in column.to_pylist()
    ]
