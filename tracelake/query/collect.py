"""Collects a query's rows into an Arrow table of limited size, or exports them as Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracelake.domain.access.object_names import Folder
from tracelake.errors import ResultTooLarge
from tracelake.ports import ObjectStore
from tracelake.wire.internal.queries import Exported, ResultColumn
from tracelake.wire.task.markers import marker_in

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

STEM: Final = "rows"
MOST_COLUMNS: Final = 2_000
UNGUARDED: Final = 2_000
FEWEST: Final = 20
FIXED: Final = {
    **dict.fromkeys(("boolean", "byte", "void"), 1),
    **dict.fromkeys(("short", "integer", "float", "date", "interval year to month"), 4),
    **dict.fromkeys(("long", "double", "timestamp", "timestamp_ntz"), 8),
    "decimal": 16,
}
"""Bytes of a value, for types of a fixed size."""


@dataclass(frozen=True)
class PlannedQuery:
    """A planned query, which can be run many times."""

    frame: DataFrame
    bounded: DataFrame
    """The same, limited to `unguarded` rows and one more."""
    unguarded: int
    """How many rows may be collected without counting bytes."""
    columns: list[ResultColumn]


@dataclass(frozen=True)
class Rows:
    table: pa.Table
    columns: list[ResultColumn]
    truncated: bool


def bounded(frame: DataFrame, max_rows: int, max_bytes: int, row_bytes: int = 0) -> PlannedQuery:
    """`row_bytes`: the maximal size of a row, where it is known."""
    columns = columns_of(frame)
    unguarded = min(_unguarded_rows(frame, max_rows, max_bytes), max(1, max_bytes // max(1, row_bytes)))
    return PlannedQuery(frame, _bounded(frame, unguarded), unguarded, columns)


def collect(plan: PlannedQuery, max_rows: int, max_bytes: int) -> Rows:
    """Return at most `max_rows`; raises if they hold more than `max_bytes`, before they fill the memory.

    Rows with texts, bytes or lists can have any size. A few are fetched first, which is nearly always enough; if there
    are more, they pass a check that counts bytes.
    """
    table = plan.bounded.toArrow()
    if table.num_rows > plan.unguarded and plan.unguarded < max_rows:
        table = _guarded(plan.frame.limit(max_rows + 1), max_bytes).toArrow()
    truncated = table.num_rows > max_rows
    if truncated:
        table = table.slice(0, max_rows)
    if table.nbytes > max_bytes:
        raise too_large(max_bytes)
    return Rows(table, plan.columns, truncated)


def _unguarded_rows(frame: DataFrame, max_rows: int, max_bytes: int) -> int:
    """Return how many rows may be collected without counting bytes."""
    sizes = [FIXED.get(field.dataType.typeName().partition("(")[0]) for field in frame.schema.fields]
    of_any_size = sizes.count(None)
    if of_any_size:
        return min(max_rows, max(FEWEST, UNGUARDED // of_any_size))
    return min(max_rows, max_bytes // max(1, sum(size or 0 for size in sizes)))


def _bounded(frame: DataFrame, rows: int) -> DataFrame:
    return frame if _fits(frame, rows) else frame.limit(rows + 1)


def _guarded(frame: DataFrame, max_bytes: int) -> DataFrame:
    refusal = too_large(max_bytes).message

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left = max_bytes
        for batch in batches:
            left -= batch.nbytes
            if left < 0:
                raise ResultTooLarge(refusal)
            yield batch

    return frame.mapInArrow(count, frame.schema)


def export(frame: DataFrame, objects: ObjectStore, folder: Folder, files: int) -> tuple[Exported, list[ResultColumn]]:
    """Write the rows as Parquet files. `_SUCCESS` is written last and lists them: without it they do not count."""
    from tracelake.data.files.parquet_writer import OutputFolder, write_frame

    columns = columns_of(frame)
    written = write_frame(frame, OutputFolder(objects, folder), STEM, files=files)
    entries = [item.file for item in written]
    success = {"files": entries, "columns": columns}
    objects.put(marker_in(folder), msgspec.json.encode(success))
    done = Exported(
        location=str(folder),
        files=[entry.name for entry in entries],
        rows=sum(entry.rows for entry in entries),
        bytes=sum(entry.bytes for entry in entries),
    )
    return done, columns


def columns_of(frame: DataFrame) -> list[ResultColumn]:
    return columns_of_schema(frame.schema)


def columns_of_schema(schema: StructType) -> list[ResultColumn]:
    fields = schema.fields
    if len(fields) > MOST_COLUMNS:
        raise ResultTooLarge(
            f"the result has {len(fields)} columns; at most {MOST_COLUMNS} are allowed", hint="name fewer"
        )
    return [ResultColumn(name=field.name, type=field.dataType.simpleString()) for field in fields]


def too_large(max_bytes: int) -> ResultTooLarge:
    return ResultTooLarge(
        f"the rows are larger than {max_bytes} bytes", hint="read fewer, aggregate them, or export them"
    )


def _fits(frame: Any, max_rows: int) -> bool:
    """Whether Spark knows from an aggregate or a LIMIT that there are no more: a limit of ours would cost a stage."""
    known = frame._jdf.queryExecution().analyzed().maxRows().toString()  # noqa: SLF001 - there is no other way
    return known != "None" and int(known.removeprefix("Some(").removesuffix(")")) <= max_rows
