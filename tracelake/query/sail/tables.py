"""Makes the tables of a query: of files, of rows in Postgres, of both, and with the DAG's filters.

The files are those that are current at the commit, and the rows of Postgres are those of one snapshot, taken after the
commit was chosen: `data/hot/view.py` says which block numbers come from where. The rows are copied, so the snapshot is
held while they are read, and not while the query runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracelake.data.files.parquet_reader import ddl
from tracelake.data.hot.view import HeldSnapshot, HotView, held
from tracelake.data.postgres.secret_dsn import SecretDsn
from tracelake.domain.access.object_names import ObjectName
from tracelake.errors import TraceError
from tracelake.query.checked_query import CheckedQuery, ColdFiles, Relation
from tracelake.query.engine import CannotRun
from tracelake.query.sail import plans
from tracelake.query.sail.column_types import schema_of
from tracelake.query.sail.filter_condition import passing
from tracelake.query.sail.hot_tables import HotReading, HotSource, copied, hot_source
from tracelake.query.sail.plans import Condition, SailPlan
from tracelake.query.sail.staged_files import StagedFiles
from tracelake.settings import QuerySettings
from tracelake.wire.task.markers import ColumnEntry

MIB: Final = 1024 * 1024
MOST_RUNS: Final = 200
"""Of block numbers that are not read from files: each becomes a condition."""


LookedUp = Callable[[Mapping[str, Relation]], None]
"""Called with the relations when hot tables were looked up and their columns are known, before rows are copied."""


@contextmanager
def tables_of(
    query: CheckedQuery, files: StagedFiles, dsn: str, *, settings: QuerySettings, looked_up: LookedUp
) -> Iterator[dict[str, SailPlan]]:
    """Yield each table by its name in the query. Their files are there inside the block."""
    with ExitStack() as stack:
        yield _Tables(query, files, dsn, settings, stack, looked_up).plans()


@dataclass(frozen=True)
class _Tables:
    query: CheckedQuery
    files: StagedFiles
    dsn: str
    settings: QuerySettings
    stack: ExitStack
    looked_up: LookedUp

    def plans(self) -> dict[str, SailPlan]:
        cold = {name: item for name, item in self.query.relations.items() if not item.hot}
        found = {name: self._filtered(self._of_files(item), item) for name, item in cold.items()}
        if len(found) < len(self.query.relations):
            with held(self.dsn) as moment:
                found |= self._hot(moment)
        return found

    def _hot(self, moment: HeldSnapshot) -> dict[str, SailPlan]:
        hot = {name: item for name, item in self.query.relations.items() if item.hot}
        sources = {name: hot_source(moment, item, self.query.caller.org_id) for name, item in hot.items()}
        known = {name: replace(item, hot_columns=sources[name].columns) for name, item in hot.items()}
        self.looked_up({**self.query.relations, **known})
        return {name: self._filtered(self._with_files(sources[name], item), item) for name, item in known.items()}

    def _filtered(self, rows: SailPlan, relation: Relation) -> SailPlan:
        types = {column.name: column.type for column in relation.columns}
        return plans.where(rows, passing(relation.filters, types)) if relation.filters else rows

    def _of_files(self, relation: Relation) -> SailPlan:
        cold = relation.cold
        if cold is None or cold.columns is None or cold.cut:
            raise CannotRun("no_files")
        if not cold.files:
            return self._empty(cold.columns)
        return self._parquet(cold.files, cold.columns, relation)

    def _with_files(self, source: HotSource, relation: Relation) -> SailPlan:
        """Postgres' rows, and those of the files that are neither there nor gone."""
        most = (self.settings.sail_hot_rows, self.settings.sail_hot_mb * MIB)
        reading = HotReading(SecretDsn(self.dsn), *most, self.query.seconds)
        with _left_to_spark(OSError):
            path, within = self.stack.enter_context(self.files.new_file())
            columns = copied(source, relation, self.query, path, reading)
            path.chmod(0o444)
        rows = plans.parquet([within], ddl(columns))
        cold = relation.cold
        if source.view is None or cold is None or not (cold.files or cold.cut):
            return rows
        parts = self._cold_parts(cold, columns, relation, source.view.table.number_column or "")
        names = [column.name for column in columns]
        return plans.union([rows, *(plans.selected(_left(part, source.view), names) for part in parts)])

    def _cold_parts(
        self, cold: ColdFiles, columns: Sequence[ColumnEntry], relation: Relation, number: str
    ) -> Iterator[SailPlan]:
        types = {column.name: column.type for column in cold.columns or ()}
        if any(types.get(column.name) != column.type for column in columns):
            raise CannotRun("types")  # Spark casts them
        if cold.files:
            yield self._parquet(cold.files, cold.columns or (), relation)
        for spans, names in cold.cut.items():
            counts = [_within(number, span.start, span.stop) for span in spans]
            yield plans.where(self._parquet(names, cold.columns or (), relation), plans.joined("or", counts))

    def _parquet(self, names: Sequence[ObjectName], columns: Sequence[ColumnEntry], relation: Relation) -> SailPlan:
        """Files of rows that are not all for the caller have names for this query alone."""
        with _left_to_spark(OSError, TraceError):
            staged = self.stack.enter_context(self.files.using(names, alone=bool(relation.filters)))
        return plans.parquet(list(staged.values()), ddl(columns))

    def _empty(self, columns: Sequence[ColumnEntry]) -> SailPlan:
        """A file without rows: a table of no files has no columns on Sail."""
        with _left_to_spark(OSError):
            path, within = self.stack.enter_context(self.files.new_file())
            _write_empty(path, columns)
        return plans.parquet([within], ddl(columns))


def _write_empty(path: Path, columns: Sequence[ColumnEntry]) -> None:
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema

    pq.write_table(to_arrow_schema(schema_of(columns), timezone="UTC").empty_table(), path)
    path.chmod(0o444)


def _left(rows: SailPlan, view: HotView) -> SailPlan:
    """Rows of files whose block numbers are neither hot nor gone."""
    excluded = [*view.runs, *([view.gone] if view.gone is not None else [])]
    if len(excluded) > MOST_RUNS:
        raise CannotRun("runs")
    number = view.table.number_column or ""
    conditions = [plans.call("not", _within(number, run.start, run.stop)) for run in excluded]
    return plans.where(rows, plans.joined("and", [_within(number, view.start, view.stop), *conditions]))


def _within(number: str, start: int, stop: int) -> Condition:
    column = plans.column(number)
    first, last = plans.literal(long=start), plans.literal(long=stop)
    return plans.call("and", plans.call(">=", column, first), plans.call("<", column, last))


@contextmanager
def _left_to_spark(*errors: type[Exception]) -> Iterator[None]:
    """A file that is missing, or a full disk: Spark may read it, or says what it is."""
    try:
        yield
    except errors:
        raise CannotRun("files") from None
