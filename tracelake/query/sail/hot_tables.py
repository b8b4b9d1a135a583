"""Reads tables in data Postgres for one query: which rows they are, in one snapshot, and their copy as a Parquet file.

A copy has only the columns, block numbers and rows that the query can need, as far as its text shows. One that would be
larger than `query.sail_hot_rows` or `query.sail_hot_mb` is not finished: Spark reads the table in parts instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from tracelake.data.buffered.reader import declared_columns
from tracelake.data.hot.reader import pieces_of, source_options, spark_schema
from tracelake.data.hot.tables import registered
from tracelake.data.hot.view import HeldSnapshot, HotView, Run, view_of
from tracelake.data.postgres.secret_dsn import SecretDsn
from tracelake.domain.access.storage_locations import buffered_table
from tracelake.domain.filter.tree import AnyOf, columns_of
from tracelake.domain.sql.number_spans import ALL, Spans, overlap, passing, shared
from tracelake.domain.sql.numbers import needed_numbers
from tracelake.errors import BadInput
from tracelake.query.checked_query import CheckedQuery, Relation
from tracelake.query.engine import CannotRun
from tracelake.query.sail.column_types import schema_of
from tracelake.query.sail.pushed_filters import needed_columns, pushed_filters
from tracelake.query.spark.views import END, nothing_yet
from tracelake.wire.task.markers import ColumnEntry

if TYPE_CHECKING:
    import pyarrow as pa

HIDDEN: Final = (ColumnEntry(name="org_id", type="string"),)
"""Columns of a buffered table that are read and not shown."""


@dataclass(frozen=True)
class HotSource:
    """A table in Postgres, as a query may read it."""

    table: str
    columns: tuple[ColumnEntry, ...]
    options: Mapping[str, str]
    """Those of `PostgresReader`."""
    view: HotView | None = None
    """Of a table that is written block by block: which of its numbers are hot."""
    hidden: tuple[ColumnEntry, ...] = ()


@dataclass(frozen=True)
class HotReading:
    """How rows are read, and how many at most."""

    dsn: SecretDsn
    rows: int
    bytes: int
    seconds: float


def hot_source(moment: HeldSnapshot, relation: Relation, org_id: UUID) -> HotSource:
    """Look the table up in the snapshot; raises if the organisation has none, or if needed rows were swept."""
    table = registered(moment.connection, org_id, relation.dataset_version)
    if table is None:
        return _buffered(moment, relation, org_id)
    columns = tuple(
        ColumnEntry(name=field.name, type=field.dataType.simpleString()) for field in spark_schema(table.schema).fields
    )
    plain = {"pieces": "[[[null, null]]]", "column": "", "snapshot": moment.name}
    if table.number_column is None:
        return HotSource(f"hot.{table.name}", columns, plain)
    commit = relation.cold.pin[1] if relation.cold else 0
    view = view_of(moment, table, start=0, stop=END, commit=commit)
    return HotSource(f"hot.{table.name}", columns, plain, view)


def copied(
    source: HotSource, relation: Relation, query: CheckedQuery, path: Path, reading: HotReading
) -> list[ColumnEntry]:
    """Write the rows that the query can need to a Parquet file, and return the columns that it has."""
    import pyarrow.parquet as pq

    reader = _reader(source, relation, query, reading)
    columns = [column for column in source.columns if column.name in reader.columns]
    shown = [column.name for column in columns]
    rows = size = 0
    with pq.ParquetWriter(path, _arrow_schema(reader, shown), compression="none") as writer:
        for batch in _batches(reader):
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows > reading.rows or size > reading.bytes:
                raise CannotRun("large")
            writer.write_batch(batch.select(shown))
    return columns


def _buffered(moment: HeldSnapshot, relation: Relation, org_id: UUID) -> HotSource:
    columns = declared_columns(moment.connection, org_id, relation.dataset_version)
    if columns is None:
        raise nothing_yet(relation)
    options = {
        "pieces": "[[[null, null]]]",
        "column": "",
        "snapshot": moment.name,
        "only": json.dumps({"org_id": str(org_id)}),
    }
    return HotSource(buffered_table(relation.dataset_version), tuple(columns), options, hidden=HIDDEN)


def _reader(source: HotSource, relation: Relation, query: CheckedQuery, reading: HotReading) -> Any:
    from tracelake.data.postgres.source import PostgresReader

    kept = _kept_columns(source, relation, query)
    options = {"table": source.table, **source.options, "one_scan": "yes", "seconds": str(reading.seconds)}
    if source.view is not None:
        options |= source_options(source.view, _pieces(source.view, relation, query))
    reader = PostgresReader(reading.dsn, options, schema_of([*kept, *source.hidden]))
    pushed = pushed_filters(query.checked, relation.name, {column.name: column.type for column in kept})
    list(reader.pushFilters(pushed))  # what Postgres does not apply, Sail does
    return reader


def _kept_columns(source: HotSource, relation: Relation, query: CheckedQuery) -> list[ColumnEntry]:
    wanted = {name.casefold() for name in needed_columns(query.checked, [column.name for column in source.columns])}
    wanted |= {name.casefold() for item in relation.filters for name in columns_of(item)}
    wanted |= {source.view.table.number_column or ""} if source.view is not None else set()
    return [column for column in source.columns if column.name.casefold() in wanted] or [source.columns[0]]


def _pieces(view: HotView, relation: Relation, query: CheckedQuery) -> list[list[list[int]]]:
    """Return the hot block numbers that the query can need, in one piece."""
    number = view.table.number_column or ""
    needed = needed_numbers(query.checked, number, {relation.name}).get(relation.name, ALL)
    granted = passing(AnyOf(relation.filters), number) if relation.filters else ALL
    return pieces_of(_narrowed(view, shared([needed, granted])), 1)


def _narrowed(view: HotView, spans: Spans) -> list[Run]:
    runs = []
    for run in view.runs:
        for start, end in spans if overlap(spans, run.start, run.stop - 1) else ():
            first, stop = max(run.start, start), min(run.stop, end + 1)
            if first < stop:
                runs.append(Run(int(first), int(stop)))
    return runs


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.datasource import InputPartition

    piece = reader.pieces[0]
    try:
        yield from reader.read(InputPartition(piece)) if piece else ()
    except BadInput:  # a value that does not fit its column: Spark has the better message
        raise CannotRun("hot") from None


def _arrow_schema(reader: Any, names: list[str]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, reader.columns[name].arrow) for name in names])
