"""Writes a DataFrame as batches for the sink: Parquet objects of a limited size, written by the Python workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.ports import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONTENT_TYPE: Final = "application/vnd.apache.parquet"
BATCH_BYTES: Final = 8 * 1024 * 1024
"""In memory; the Parquet is smaller, and the sink's limit is twice that."""


@dataclass(frozen=True)
class WrittenBatch:
    name: ObjectName
    rows: int
    bytes: int


def write_batches(frame: DataFrame, objects: ObjectStore, folder: Folder, stem: str) -> list[WrittenBatch]:
    """Return what was written; a repeated Spark task may leave objects that are never published."""
    rows = frame.mapInArrow(_writer(objects, folder, stem), "name string, rows long, bytes long").collect()
    return [WrittenBatch(ObjectName.parse(row[0]), row[1], row[2]) for row in rows]


def write_batch(table: pa.Table, objects: ObjectStore, name: ObjectName) -> WrittenBatch:
    import pyarrow.parquet as pq

    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    body = out.getvalue().to_pybytes()
    objects.put(name, body)
    return WrittenBatch(name, table.num_rows, len(body))


def _writer(
    objects: ObjectStore, folder: Folder, stem: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        tried = context.taskAttemptId() if context is not None else 0
        for number, table in enumerate(_pieces(batches)):
            batch = write_batch(table, objects, folder.object(f"{stem}_{tried}_{number}.parquet"))
            report = {"name": [str(batch.name)], "rows": [batch.rows], "bytes": [batch.bytes]}
            yield pa.RecordBatch.from_pydict(report)

    return write


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        if sum(item.nbytes for item in waiting) >= BATCH_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)
