"""Reads hot and cold rows of a range as one Arrow table, in the executor of a compaction.

`reader.read_with_cold` returns the same rows as a DataFrame, for Spark. Here they are only copied, so they need not
pass through the JVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from tracelake.data.hot.reader import number_of, source_options, spark_schema
from tracelake.data.hot.view import HotView
from tracelake.data.postgres.secret_dsn import SecretDsn
from tracelake.data.postgres.source import PostgresReader
from tracelake.domain.access.object_names import ObjectName
from tracelake.domain.ranges import Range, intersect, subtract
from tracelake.ports import ObjectStore


@dataclass(frozen=True)
class ColdFile:
    """A current Parquet file at the view's commit, and the numbers whose rows count."""

    name: ObjectName
    spans: tuple[Range, ...]


def pull_with_cold(
    dsn: SecretDsn, objects: ObjectStore, view: HotView, cold: Sequence[ColdFile], span: Range
) -> pa.Table:
    """Return every block of `span` once, from the source that the view names, in key order."""
    schema = view.table.schema
    hot = [Range(run.start, run.stop) for run in view.runs]
    gone = [Range(view.gone.start, view.gone.stop)] if view.gone else []
    parts = [_hot_rows(dsn, view, list(intersect(hot, [span])))]
    left = list(subtract([span], [*hot, *gone]))
    parts += [table for file in cold for table in _cold_rows(objects, view, file, list(intersect(left, file.spans)))]
    whole = pa.concat_tables([_fitted(part, schema) for part in parts])
    return whole.sort_by([(column, "ascending") for column in view.table.unique_key])


def _hot_rows(dsn: SecretDsn, view: HotView, spans: Sequence[Range]) -> pa.Table:
    """Uses the same reader, snapshot and guard as a DataFrame."""
    schema = spark_schema(view.table.schema)
    piece = [[span.start, span.stop] for span in spans]
    reader = PostgresReader(dsn, {"table": f"hot.{view.table.name}", **source_options(view, [piece])}, schema)
    batches = list(reader.read(InputPartition(piece))) if piece else []
    return pa.Table.from_batches(batches) if batches else view.table.schema.empty_table()


def _cold_rows(objects: ObjectStore, view: HotView, file: ColdFile, spans: Sequence[Range]) -> Iterator[pa.Table]:
    if not spans:
        return
    whole = pq.read_table(pa.BufferReader(objects.get(file.name)))
    number = pc.field(number_of(view))
    for span in spans:
        yield whole.filter((number >= span.start) & (number < span.stop))


def _fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Files from before a column was added do not have it."""
    columns = [rows[name] if name in rows.column_names else pa.nulls(len(rows)) for name in schema.names]
    return pa.table(columns, names=schema.names).cast(schema)
