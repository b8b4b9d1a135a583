"""One Spark task's rows into a staging table: what runs in the Python worker. Part of `postgres_writer`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from trace_platform.spark.postgres_sql import Column
from trace_platform.spark.secret_dsn import SecretDsn
from trace_platform.spark.worker_connection import driver_errors, open_session

TRY: Final = "trace_try"
"""The column with the try of the Spark task that wrote the row: Spark repeats tasks, and must not repeat rows."""


def stager(
    dsn: SecretDsn, name: str, columns: Mapping[str, Column]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow`: rows go into the table in one transaction, out comes how many, and by which try."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.taskAttemptId() if context is not None else 0
        schema = _schema(columns)
        rows = pa.RecordBatchReader.from_batches(schema, (_staged(batch, columns, number) for batch in batches))
        with driver_errors(dsn, "write"), open_session(dsn) as connection:
            with connection.cursor() as cursor:
                count = cursor.adbc_ingest(name, rows, mode="append", db_schema_name="staging")
            connection.commit()
        yield pa.RecordBatch.from_pydict({"try": pa.array([number], pa.int64()), "rows": pa.array([count], pa.int64())})

    return stage


def _schema(columns: Mapping[str, Column]) -> pa.Schema:
    fields = [(column.name, _travels_as(column)) for column in columns.values()]
    return pa.schema([*fields, (TRY, pa.int64())])


def _travels_as(column: Column) -> pa.DataType:
    """Decimals as text, which Postgres reads exactly; the smallest number as the smallest that Postgres has."""
    if pa.types.is_decimal(column.arrow):
        return pa.string()
    return pa.int16() if pa.types.is_int8(column.arrow) else column.arrow


def _staged(batch: pa.RecordBatch, columns: Mapping[str, Column], number: int) -> pa.RecordBatch:
    arrays = [batch.column(column.name).cast(_travels_as(column)) for column in columns.values()]
    arrays.append(pa.repeat(pa.scalar(number, pa.int64()), batch.num_rows))
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(columns))
