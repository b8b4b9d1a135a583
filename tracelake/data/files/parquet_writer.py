"""Writes rows as Parquet files with given names, inside Spark's Python workers; only reports come back.

One Spark partition is one file. A file is put whole and never replaced: when Spark repeats a partition, the second file
gets another name, and only the file whose report came back is listed in the marker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tracelake.data.files.addresses import Addresses
from tracelake.data.files.column_hashes import Hashes, column_hashes
from tracelake.domain.access.object_names import Folder
from tracelake.domain.ranges import Range, format_file_part
from tracelake.errors import ObjectExists, TraceError
from tracelake.ports import ObjectStore
from tracelake.spark.failures import rebuilt, spark_failures
from tracelake.wire.task.markers import NUMBER, ColumnEntry, FileEntry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SUFFIX: Final = ".parquet"
COMPRESSION: Final = "zstd"
_REPORT: Final = (
    "part int, name string, rows long, bytes long, sha256 string, columns string, hashes string,"
    " addresses binary, meta string, least long, most long"
)


@dataclass(frozen=True)
class OutputFolder:
    """The folder of the files; sent to the executors."""

    objects: ObjectStore
    folder: Folder


@dataclass(frozen=True)
class Written:
    part: int
    """The index of the range, or of the Spark partition."""
    file: FileEntry
    columns: tuple[ColumnEntry, ...]
    meta: str = ""
    hashes: Hashes = field(default_factory=dict)
    """Of its columns."""
    addresses: bytes | None = None
    """Their summary, if it has a column of them."""


Tables = Mapping[str, "pa.Table"]
Fetch = Callable[[Range], tuple[Tables, str]]
"""Called inside an executor, so it must be picklable: returns the tables of a range by name, and a comment."""


def write_frame(frame: DataFrame, place: OutputFolder, stem: str, *, files: int = 1) -> list[Written]:
    """Write the rows as `files` files, `{stem}.parquet` if it is one. There is at least one file, even without rows."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema, timezone="UTC")

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext as SparkTask

        running = SparkTask.get()
        part = running.partitionId() if running else 0
        name = stem if files == 1 else f"{stem}_part{part}"
        yield _report([_write_batches(place, name, schema, batches, part)])

    narrowed = frame.coalesce(files) if files == 1 else frame.repartition(files)
    return [_written(row) for row in narrowed.mapInArrow(write, _REPORT).collect()] or [
        _write_batches(place, stem, schema, (), 0)
    ]


def write_ranges(
    spark: SparkSession | None,
    fetch: Fetch,
    ranges: Sequence[Range],
    places: Mapping[str, OutputFolder],
    stems: Mapping[str, str],
) -> list[tuple[str, Written]]:
    """Fetch and write each range in a Spark task: one file for each of its tables.

    Without a session, in this process, one after the other.
    """
    if spark is None:
        reports = [_fetch_and_write(fetch, span, number, places, stems) for number, span in enumerate(ranges)]
        return [_table_and_file(row) for batch in reports for row in batch.to_pylist()]

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _fetch_and_write(fetch, ranges[number], number, places, stems)

    if not ranges:
        return []
    with spark_failures("/config"):
        rows = spark.range(len(ranges), numPartitions=len(ranges)).mapInArrow(write, _REPORT).collect()
    return [_table_and_file(row) for row in rows]


def _fetch_and_write(
    fetch: Fetch, span: Range, number: int, places: Mapping[str, OutputFolder], stems: Mapping[str, str]
) -> pa.RecordBatch:
    """Report an error like a file: Spark would retry three times, and wrap it in a long text.

    It may come from fetching, or from the store.
    """
    part = format_file_part(span)
    try:
        tables, meta = fetch(span)
        written = {
            table: _write_table(place, f"{stems[table]}_{part}", tables[table], number)
            for table, place in places.items()
        }
    except TraceError as refusal:
        nothing = Written(number, FileEntry(name="-", rows=0, bytes=0, sha256="-"), ())
        return _report([nothing], [json.dumps({"error": refusal.as_dict()})])
    return _report(list(written.values()), [json.dumps({"table": table, "meta": meta}) for table in written])


def _table_and_file(row: Any) -> tuple[str, Written]:
    meta = json.loads(row["meta"])
    if "error" in meta:
        raise rebuilt(meta["error"])
    return meta["table"], _written(row, meta["meta"])


def write_table(place: OutputFolder, stem: str, table: pa.Table) -> Written:
    """Write rows that are in this process."""
    return _write_table(place, stem, table, 0)


def _write_table(place: OutputFolder, stem: str, table: pa.Table, part: int) -> Written:
    return _write_batches(place, stem, table.schema, table.to_batches(), part)


def _write_batches(
    place: OutputFolder, stem: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], part: int
) -> Written:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink, rows, seen, addresses = pa.BufferOutputStream(), 0, _Seen(), Addresses(schema)
    with pq.ParquetWriter(sink, schema, compression=COMPRESSION) as writer:
        for batch in batches:
            fitted = _fitted(batch, schema)
            writer.write_batch(fitted)
            seen.add(fitted)
            addresses.add(fitted)
            rows += batch.num_rows
    body = memoryview(sink.getvalue()).cast("B")  # Arrow's buffers have signed bytes, which the store takes for a list
    digest, name = hashlib.sha256(body).hexdigest(), _put(place, stem, body)
    entry = FileEntry(name=name, rows=rows, bytes=len(body), sha256=digest, numbers=seen.numbers)
    hashes = column_hashes(body, schema)
    return Written(part, entry, tuple(columns_of(schema)), hashes=hashes, addresses=addresses.summary)


class _Seen:
    """Return the block numbers of a file; none without such an integer column, or without numbers in it."""

    def __init__(self) -> None:
        self.numbers: tuple[int, int] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        place = batch.schema.get_field_index(NUMBER)
        if place < 0 or not pa.types.is_signed_integer(batch.schema.field(place).type):
            return
        bounds: Any = pc.min_max(batch.column(place)).as_py()
        if bounds["min"] is not None:
            least, most = self.numbers or (bounds["min"], bounds["max"])
            self.numbers = (min(least, bounds["min"]), max(most, bounds["max"]))


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Restore the requested schema: Spark marks a column without NULL as such."""
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _put(place: OutputFolder, stem: str, body: memoryview) -> str:
    name = f"{stem}{SUFFIX}"
    try:
        place.objects.put(place.folder.object(name), body)
    except ObjectExists:  # Spark has run this part before and lost its report: that file is an orphan
        name = f"{stem}_again_{uuid4().hex[:8]}{SUFFIX}"
        place.objects.put(place.folder.object(name), body)
    return name


def columns_of(schema: pa.Schema) -> Iterator[ColumnEntry]:
    """Return names and Spark's types, as a reader needs them."""
    from pyspark.sql.pandas.types import from_arrow_type

    for column in schema:
        kind = from_arrow_type(column.type, prefer_timestamp_ntz=True)
        yield ColumnEntry(name=column.name, type=kind.simpleString())


def _report(written: Sequence[Written], metas: Sequence[str] | None = None) -> pa.RecordBatch:
    import pyarrow as pa

    columns: dict[str, list[Any]] = {
        "part": [report.part for report in written],
        "name": [report.file.name for report in written],
        "rows": [report.file.rows for report in written],
        "bytes": [report.file.bytes for report in written],
        "sha256": [report.file.sha256 for report in written],
        "columns": [json.dumps([[column.name, column.type] for column in report.columns]) for report in written],
        "hashes": [json.dumps(report.hashes) for report in written],
        "addresses": [report.addresses for report in written],
        "meta": list(metas or ["" for _ in written]),
        "least": [report.file.numbers and report.file.numbers[0] for report in written],
        "most": [report.file.numbers and report.file.numbers[1] for report in written],
    }
    numbers, texts = [pa.int64()] * 2, [pa.string()] * 3
    types = [pa.int32(), pa.string(), *numbers, *texts, pa.binary(), pa.string(), *numbers]
    arrays = [pa.array(values, kind) for values, kind in zip(columns.values(), types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _written(row: Any, meta: str = "") -> Written:
    numbers = None if row["least"] is None else (row["least"], row["most"])
    entry = FileEntry(name=row["name"], rows=row["rows"], bytes=row["bytes"], sha256=row["sha256"], numbers=numbers)
    columns = tuple(ColumnEntry(name=name, type=kind) for name, kind in json.loads(row["columns"]))
    addresses = None if row["addresses"] is None else bytes(row["addresses"])
    return Written(row["part"], entry, columns, meta, json.loads(row["hashes"]), addresses)
