"""Creates the tables of a query as temporary views of its session: of files, and of hot tables in data Postgres.

A view of files is created once for a pin, or for the files of it that a query can need, and kept: a commit never
changes. A view with hot rows is created for the query, in a snapshot that is held while it runs, and dropped
afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from tracelake.data.files.parquet_reader import read_files
from tracelake.domain.filter.tree import AnyOf, Filter
from tracelake.errors import Unavailable
from tracelake.ports import ObjectStore
from tracelake.query.checked_query import ColdFiles, Relation
from tracelake.query.spark.sessions import Prepared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tracelake.data.hot.view import HeldSnapshot

END: Final = 2**63 - 1


@dataclass(frozen=True)
class Store:
    """The object store, and data Postgres through the read-only role."""

    objects: ObjectStore
    dsn: str = field(repr=False)


@contextmanager
def views_of(
    prepared: Prepared,
    relations: Mapping[str, Relation],
    store: Store,
    org: UUID,
    read_once: Collection[str] = (),
) -> Iterator[dict[str, str]]:
    """Create the views and yield their names by table name. Rows must be read inside the block.

    Postgres may filter tables that the query scans only once (`read_once`).
    """
    from tracelake.data.hot.view import held

    with ExitStack() as stack:
        cold = {name: _cold(prepared, item, store) for name, item in relations.items() if not item.hot}
        frames = {name: frame for name, (_, frame) in cold.items() if relations[name].filters}
        hot = {name: item for name, item in relations.items() if item.hot}
        if hot:
            moment = stack.enter_context(held(store.dsn))  # for all tables, until the rows are read
            for name, item in hot.items():
                frames[name] = _HotTable(prepared, item, store, org, moment, name in read_once).frame()
        names = {name: f"v_{uuid4().hex}" for name in frames}
        for name, frame in frames.items():
            _filtered(frame, relations[name].filters).createTempView(names[name])
            stack.callback(prepared.spark.catalog.dropTempView, names[name])
        yield {name: view for name, (view, _) in cold.items()} | names


def _filtered(frame: DataFrame, filters: Sequence[Filter]) -> DataFrame:
    from tracelake.data.filter_column import as_column

    return frame.where(as_column(AnyOf(tuple(filters)), frame)) if filters else frame


def _cold(prepared: Prepared, relation: Relation, store: Store) -> tuple[str, DataFrame]:
    files = relation.cold
    if files is None or files.columns is None:
        raise nothing_yet(relation)
    return _kept(prepared, files, store)


def _kept(prepared: Prepared, files: ColdFiles, store: Store, number: str = "") -> tuple[str, DataFrame]:
    view = prepared.views.get(files.key)
    if view is None:
        frame = _read(prepared, files, store, number)
        name = f"v_{uuid4().hex}"
        frame.createTempView(name)
        prepared.keep(files.key, name, frame)
        return name, frame
    prepared.views.move_to_end(files.key)
    return view


def _read(prepared: Prepared, files: ColdFiles, store: Store, number: str) -> DataFrame:
    """Make it one partition where that is faster: Spark then plans one stage without an exchange."""
    frame = read_files(prepared.spark, store.objects, files.files, files.columns or ())
    for spans, names in files.cut.items():
        rows = read_files(prepared.spark, store.objects, names, files.columns or ())
        counts = [rows[number].between(*span.edges) for span in spans]
        frame = frame.unionByName(rows.where(reduce(or_, counts)))
    return frame.coalesce(1) if files.in_one_go else frame


@dataclass(frozen=True)
class _HotTable:
    prepared: Prepared
    relation: Relation
    store: Store
    org: UUID
    moment: HeldSnapshot
    one_scan: bool
    """The query scans it once, so Postgres may apply the filters of that scan."""

    def frame(self) -> DataFrame:
        from tracelake.data.hot.reader import read_hot, read_with_cold, spark_schema
        from tracelake.data.hot.tables import registered
        from tracelake.data.hot.view import view_of
        from tracelake.data.postgres.source import read_postgres

        spark, dsn, once = self.prepared.spark, self.store.dsn, self.one_scan
        table = registered(self.moment.connection, self.org, self.relation.dataset_version)
        if table is None:
            return self._buffered()
        if table.number_column is None:
            schema, name = spark_schema(table.schema), f"hot.{table.name}"
            return read_postgres(spark, dsn, name, schema, snapshot=self.moment.name, one_scan=once)
        cold = self.relation.cold
        view = view_of(self.moment, table, start=0, stop=END, commit=cold.pin[1] if cold else 0)
        if cold is None or not (cold.files or cold.cut):
            return read_hot(spark, dsn, view, one_scan=once)
        _, files = _kept(self.prepared, cold, self.store, table.number_column)
        return read_with_cold(spark, dsn, view, files, one_scan=once)

    def _buffered(self) -> DataFrame:
        from tracelake.data.buffered.reader import declared_columns, read_buffered

        generation, moment = self.relation.dataset_version, self.moment
        columns = declared_columns(moment.connection, self.org, generation)
        if columns is None:
            raise nothing_yet(self.relation)
        return read_buffered(
            self.prepared.spark,
            self.store.dsn,
            generation,
            columns,
            org_id=self.org,
            snapshot=moment.name,
            one_scan=self.one_scan,
        )


def nothing_yet(relation: Relation) -> Unavailable:
    return Unavailable(f"nothing has been written to {relation.name} yet", where=relation.name, hint="retry later")
