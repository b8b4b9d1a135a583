"""Reads, checks and copies batches into staging tables, in Python workers of Spark, by Arrow and ADBC.

Rows never pass through the driver. A batch that is refused, or whose store or database is unavailable, is reported and
does not affect the others. Next: `merge_batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tracelake.data.buffered.batch_fault import MAX_REASON_CHARS, BatchFault
from tracelake.data.buffered.check_batch import CheckLimits, check_batch
from tracelake.data.buffered.types import staged_column
from tracelake.data.postgres.secret_dsn import SecretDsn
from tracelake.data.postgres.sql_text import RequestedColumn
from tracelake.data.postgres.worker_connection import driver_errors, open_session
from tracelake.domain.access.object_names import ObjectName
from tracelake.domain.buffered import Declaration
from tracelake.errors import BadInput, NotFound, TraceError
from tracelake.ports import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH: Final = "trace_batch"
"""The column with the number of the batch of a row."""
TRY: Final = "trace_try"
"""The column with the attempt of the Spark task that wrote the row: Spark repeats tasks, but rows must not repeat."""
ANSWER: Final = "n int, try long, rows long, bytes long, line long, reason string, away string, fault string"
SCHEMA: Final = pa.schema(
    [
        ("n", pa.int32()),
        ("try", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("line", pa.int64()),
        ("reason", pa.string()),
        ("away", pa.string()),
        ("fault", pa.string()),
    ]
)


@dataclass(frozen=True)
class Batch:
    """A batch to stage: its object, its declaration, and its staging table."""

    name: ObjectName
    content_type: str
    declaration: Declaration
    staging: str
    number: int
    """Distinguishes its rows from those of other batches in the staging table."""
    record_count: int | None = None


@dataclass(frozen=True)
class BatchLimits:
    batch_bytes: int
    line_bytes: int
    unpacked_bytes: int = 256 * 1024 * 1024
    tasks: int = 4
    """The maximal number of Spark tasks: small batches share one."""


@dataclass(frozen=True)
class StagedBatch:
    """The result for a batch: staged rows, or an error."""

    number: int
    tried: int
    rows: int
    bytes: int
    line: int | None
    reason: str | None
    """The batch is refused for good."""
    away: str | None
    """The batch could not be read or copied now."""
    fault: str | None = None
    """An unexpected error, which is not the batch's fault."""


def staging_columns(declaration: Declaration) -> Mapping[str, RequestedColumn]:
    declared = {column.name: staged_column(column.name, column.type) for column in declaration.columns}
    return {**declared, BATCH: RequestedColumn(BATCH, "integer", pa.int32())}


def stage_batches(
    spark: SparkSession, objects: ObjectStore, dsn: SecretDsn, batches: Sequence[Batch], limits: BatchLimits
) -> list[StagedBatch]:
    """Stage the batches in one Spark job; return a result for each, in any order."""
    stage = _stager(objects, dsn, tuple(batches), limits)
    tasks = min(len(batches), limits.tasks)
    rows = spark.range(0, len(batches), 1, tasks).mapInArrow(stage, ANSWER).collect()
    return [StagedBatch(*row) for row in rows]


def _stager(
    objects: ObjectStore, dsn: SecretDsn, batches: Sequence[Batch], limits: BatchLimits
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stage(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        tried = context.taskAttemptId() if context is not None else 0
        for group in numbers:
            for place in group.column(0).to_pylist():
                batch = batches[place]
                report = {"n": batch.number, "try": tried, **_staged(objects, dsn, batch, tried, limits)}
                yield pa.RecordBatch.from_pylist([report], schema=SCHEMA)

    return stage


def _staged(objects: ObjectStore, dsn: SecretDsn, batch: Batch, tried: int, limits: BatchLimits) -> dict[str, Any]:
    nothing = {"rows": 0, "bytes": 0}
    try:
        body = _read(objects, batch.name, limits)
        rows = _checked(body, batch, limits)
        _refuse_other_count(batch, rows)
        _copy(dsn, batch, rows, tried)
    except BatchFault as fault:
        return {**nothing, "line": fault.line, "reason": fault.reason}
    except BadInput as refused:
        return {**nothing, "reason": refused.message}
    except TraceError as away:
        return {**nothing, "away": f"{away.code}: {away.message}"}
    except Exception as error:  # noqa: BLE001 - an unexpected error must not fail the other batches
        return {**nothing, "fault": dsn.redact(f"{type(error).__name__}: {error}")[:MAX_REASON_CHARS]}
    return {"rows": rows.num_rows, "bytes": len(body)}


def _read(objects: ObjectStore, name: ObjectName, limits: BatchLimits) -> bytes:
    """Read no more than is allowed, whatever size the producer claims."""
    head = objects.head(name)
    if head is None:
        raise BatchFault("the batch is not at the location of its publish")
    if head.size > limits.batch_bytes:
        raise BatchFault(f"the batch has {head.size} bytes; at most {limits.batch_bytes} are allowed")
    try:
        return objects.get(name)
    except NotFound:
        raise BatchFault("the batch is not at the location of its publish") from None


def _checked(body: bytes, batch: Batch, limits: BatchLimits) -> pa.Table:
    """Blame the batch for what the reader cannot parse, but not for a lack of memory or an error of ours."""
    strict = CheckLimits(limits.line_bytes, limits.unpacked_bytes)
    try:
        return check_batch(body, batch.content_type, batch.declaration, strict)
    except MemoryError:
        raise
    except (pa.ArrowException, ValueError, ArithmeticError, RecursionError) as error:
        raise BatchFault(f"the batch cannot be read: {type(error).__name__}: {error}"[:MAX_REASON_CHARS]) from None


def _refuse_other_count(batch: Batch, rows: pa.Table) -> None:
    if batch.record_count is not None and rows.num_rows != batch.record_count:
        raise BatchFault(f"the publish has {batch.record_count} rows, the batch {rows.num_rows}")


def _copy(dsn: SecretDsn, batch: Batch, rows: pa.Table, tried: int) -> None:
    if not rows.num_rows:
        return
    rows = rows.sort_by(
        [(name, "ascending") for name in batch.declaration.unique_key]
    )  # sorting here costs the merge nothing
    marked = rows.append_column(BATCH, pa.repeat(pa.scalar(batch.number, pa.int32()), rows.num_rows))
    marked = marked.append_column(TRY, pa.repeat(pa.scalar(tried, pa.int64()), rows.num_rows))
    with driver_errors(dsn, "write"), open_session(dsn) as connection:
        with connection.cursor() as cursor:
            cursor.adbc_ingest(batch.staging, marked, mode="append", db_schema_name="staging")
        connection.commit()
