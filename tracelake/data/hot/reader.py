"""Reads hot rows, and hot and cold rows as one table: every block number once, as the view says.

with held(dsn) as snapshot:
view = view_of(snapshot, table, start=0, stop=100, commit=7)
rows = read_with_cold(spark, dsn, view, cold)
...                                          # every action on `rows` inside the block
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import types as st

from tracelake.data.hot.view import HotView, Run
from tracelake.data.postgres.source import load, one_scan_option
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FEW_RUNS: Final = 50
"""With more runs, they are joined instead of written out as conditions."""
WIDEST_DECIMAL: Final = 38
"""Spark's maximum; wider numbers are read as text."""
FEWEST_BLOCKS: Final = 16
"""Per partition: more tasks would cost more than they save."""


def read_hot(
    spark: SparkSession,
    dsn: str,
    view: HotView,
    *,
    columns: Sequence[str] | None = None,
    predicate: Column | None = None,
    partitions: int | None = None,
    one_scan: bool = False,
) -> DataFrame:
    """Read the hot rows of the view.

    `predicate` may use only `columns`; with `one_scan` (`postgres/source.py`) Postgres applies what it can of it.
    """
    schema = spark_schema(view.table.schema, columns)
    if not view.runs:
        rows = spark.createDataFrame([], schema)
    else:
        pieces = pieces_of(view.runs, partitions or _partitions(spark, view))
        options = {**source_options(view, pieces), "one_scan": one_scan_option(one_scan)}
        rows = load(spark, dsn, f"hot.{view.table.name}", schema, options)
    return rows if predicate is None else rows.filter(predicate)


def read_with_cold(
    spark: SparkSession,
    dsn: str,
    view: HotView,
    cold: DataFrame,
    *,
    columns: Sequence[str] | None = None,
    predicate: Column | None = None,
    partitions: int | None = None,
    one_scan: bool = False,
) -> DataFrame:
    """Read hot and cold rows as one table. `cold` is read from the current Parquet files at the view's commit."""
    names = list(columns or view.table.schema.names)
    hot = read_hot(spark, dsn, view, columns=names, predicate=predicate, partitions=partitions, one_scan=one_scan)
    only_cold = cold_side(spark, view, cold)
    if predicate is not None:
        only_cold = only_cold.filter(predicate)
    types = {field.name: field.dataType for field in hot.schema.fields}
    return hot.unionByName(only_cold.select(*(F.col(name).cast(types[name]).alias(name) for name in names)))


def cold_side(spark: SparkSession, view: HotView, cold: DataFrame) -> DataFrame:
    """Keep the Parquet rows that count: numbers of the view that are neither hot nor gone."""
    name = number_of(view)
    number = F.col(name)
    inside = cold.filter((number >= view.start) & (number < view.stop))
    excluded = [*view.runs, *([view.gone] if view.gone is not None else [])]
    if len(excluded) <= FEW_RUNS:
        for run in excluded:
            inside = inside.filter((number < run.start) | (number >= run.stop))
        return inside
    spans = spark.createDataFrame([(run.start, run.stop) for run in excluded], "_start bigint, _stop bigint")
    between = (number >= F.col("_start")) & (number < F.col("_stop"))
    return inside.join(F.broadcast(spans), between, "left_anti")


def spark_schema(schema: pa.Schema, columns: Sequence[str] | None = None) -> st.StructType:
    """Return the schema in which Spark reads a hot table; wide numerics and jsonb are text."""
    names = list(columns if columns is not None else schema.names)
    unknown = [name for name in names if name not in schema.names]
    if unknown or not names:
        raise BadInput("these columns are not in the table", where=", ".join(unknown) or "columns")
    return st.StructType([st.StructField(name, _spark_type(schema.field(name)), nullable=True) for name in names])


def pieces_of(runs: Sequence[Run], partitions: int) -> list[list[list[int]]]:
    """Distribute the runs in order, with about the same count of numbers per partition; a run may be split."""
    total = sum(run.stop - run.start for run in runs)
    share = max(1, -(-total // max(1, partitions)))
    pieces: list[list[list[int]]] = [[]]
    room = share
    for run in runs:
        start = run.start
        while start < run.stop:
            if not room:
                pieces.append([])
                room = share
            stop = min(run.stop, start + room)
            pieces[-1].append([start, stop])
            room -= stop - start
            start = stop
    return pieces


def source_options(view: HotView, pieces: Sequence[Sequence[Sequence[int]]]) -> dict[str, str]:
    """Return the options for the Postgres source: the snapshot, and what must still hold without it."""
    return {
        "pieces": json.dumps(pieces),
        "column": number_of(view),
        "snapshot": view.snapshot or "",
        "guard": json.dumps([str(view.table.dataset_version), view.commit, view.up_to_seq]),
    }


def _partitions(spark: SparkSession, view: HotView) -> int:
    total = sum(run.stop - run.start for run in view.runs)
    return max(1, min(int(spark.conf.get("spark.sql.shuffle.partitions") or 2), total // FEWEST_BLOCKS))


def number_of(view: HotView) -> str:
    if view.table.number_column is None:
        raise BadInput("this table is not written block by block", where=view.table.name)
    return view.table.number_column


def _spark_type(field: pa.Field) -> st.DataType:
    plain: dict[Any, st.DataType] = {
        pa.bool_(): st.BooleanType(),
        pa.int16(): st.ShortType(),
        pa.int32(): st.IntegerType(),
        pa.int64(): st.LongType(),
        pa.float32(): st.FloatType(),
        pa.float64(): st.DoubleType(),
        pa.date32(): st.DateType(),
        pa.timestamp("us", "UTC"): st.TimestampType(),
        pa.timestamp("us"): st.TimestampNTZType(),
    }
    if field.type in plain:
        return plain[field.type]
    if pa.types.is_decimal(field.type):
        fits = field.type.precision <= WIDEST_DECIMAL
        return st.DecimalType(field.type.precision, field.type.scale) if fits else st.StringType()
    if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
        return st.StringType()
    return st.BinaryType()
