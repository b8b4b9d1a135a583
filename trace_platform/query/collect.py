"""A question's rows: into this process as an Arrow table, never more than it may have; or as files of the caller's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trace_platform.domain.objects import Folder
from trace_platform.errors import ResultTooLarge
from trace_platform.markers import marker_in
from trace_platform.ports import ObjectStore
from trace_platform.query_contracts import Exported, ResultColumn

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

STEM: Final = "rows"
MOST_COLUMNS: Final = 2_000


@dataclass(frozen=True)
class Rows:
    table: pa.Table
    columns: list[ResultColumn]
    truncated: bool


def collect(frame: DataFrame, max_rows: int, max_bytes: int) -> Rows:
    """At most `max_rows`; refused if they are more than `max_bytes`."""
    columns = columns_of(frame)
    bounded = frame if _fits(frame, max_rows) else frame.limit(max_rows + 1)
    table = bounded.toArrow()
    truncated = table.num_rows > max_rows
    if truncated:
        table = table.slice(0, max_rows)
    if table.nbytes > max_bytes:
        raise too_large(max_bytes)
    return Rows(table, columns, truncated)


def export(frame: DataFrame, objects: ObjectStore, folder: Folder, files: int) -> tuple[Exported, list[ResultColumn]]:
    """The rows as Parquet files. They count once `_SUCCESS` is there: it lists them, and is written last."""
    from trace_platform.spark.parquet_writer import Place, write_frame

    columns = columns_of(frame)
    written = write_frame(frame, Place(objects, folder), STEM, files=files)
    entries = [one.file for one in written]
    told = {"files": entries, "columns": columns}
    objects.put(marker_in(folder), msgspec.json.encode(told))
    done = Exported(
        location=str(folder),
        files=[entry.name for entry in entries],
        rows=sum(entry.rows for entry in entries),
        bytes=sum(entry.bytes for entry in entries),
    )
    return done, columns


def columns_of(frame: DataFrame) -> list[ResultColumn]:
    fields = frame.schema.fields
    if len(fields) > MOST_COLUMNS:
        raise ResultTooLarge(f"the result has {len(fields)} columns; {MOST_COLUMNS} are given", hint="name fewer")
    return [ResultColumn(name=field.name, type=field.dataType.simpleString()) for field in fields]


def too_large(max_bytes: int) -> ResultTooLarge:
    return ResultTooLarge(
        f"the rows are more than {max_bytes} bytes", hint="ask for fewer, aggregate them, or have them exported"
    )


def _fits(frame: Any, max_rows: int) -> bool:
    """Whether Spark knows that there are not more: an aggregate or a LIMIT says so, and a limit of ours costs a stage."""
    known = frame._jdf.queryExecution().optimizedPlan().maxRows()  # noqa: SLF001 - there is no other way
    return bool(known.isDefined()) and int(known.get()) <= max_rows
