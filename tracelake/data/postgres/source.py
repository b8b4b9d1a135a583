"""Reads a Postgres table as a DataFrame: by ADBC in Python workers, in partitions, filtered by Postgres.

A Python source of Spark 4.3 does not learn which columns a query needs: request a narrow schema. Filters are pushed
down as far as Postgres means the same, and only if the caller guarantees that one scan reads the frame: Spark 4.3 keeps
the pushed filters with the loaded relation, so a second scan would use those of the first.

The DSN is not an option (options appear in plans, in the UI and in logs): the source is registered as a class that
carries it, under a name that cannot be guessed.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

from tracelake.data.postgres.secret_dsn import SecretDsn
from tracelake.data.postgres.sql_text import RequestedColumn, columns_of, condition, quoted, ranges
from tracelake.data.postgres.worker_connection import driver_error, driver_errors, open_session, run
from tracelake.errors import BadInput, SnapshotMoved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_PARTITIONS: Final = 10_000


def read_postgres(
    spark: SparkSession,
    dsn: str,
    table: str,
    schema: StructType,
    *,
    partition_column: str | None = None,
    lower: int = 0,
    upper: int = 0,
    partitions: int = 1,
    snapshot: str | None = None,
    only: Mapping[str, str | int] | None = None,
    one_scan: bool = False,
) -> DataFrame:
    """Read columns `schema` of `table` (`schema.table`), partitioned by an integer column between two bounds.

    Bounds only choose the partitions: rows outside them, and those with NULL, are read too. With `snapshot` (see
    `hot/view.py`) all partitions read one snapshot; without it, each its own. `only` rows with these values are read.
    With `one_scan` filters are pushed down, and the frame must occur once in every plan, with the same filters each
    time.
    """
    pieces: list[list[list[int | None]]] = [[[None, None]]]
    if partition_column is not None and partitions > 1:
        pieces = [[piece] for piece in cut(lower, upper, partitions)]
    options = {
        "pieces": json.dumps(pieces),
        "column": partition_column or "",
        "snapshot": snapshot or "",
        "only": json.dumps(only or {}),
        "one_scan": one_scan_option(one_scan),
    }
    return load(spark, dsn, table, schema, options)


def one_scan_option(one_scan: bool) -> str:
    return "yes" if one_scan else ""


def load(spark: SparkSession, dsn: str, table: str, schema: StructType, options: Mapping[str, str]) -> DataFrame:
    """Read with these options, which `PostgresReader` lists."""
    columns_of(schema)
    reader = spark.read.format(_registered(spark, dsn)).schema(schema)
    for name, value in {"table": table, **options}.items():
        reader = reader.option(name, value)
    return reader.load()


def cut(lower: int, upper: int, partitions: int) -> list[list[int | None]]:
    """Return half-open ranges that cover all numbers; the first and the last are unbounded."""
    count = max(1, min(partitions, upper - lower, MOST_PARTITIONS))
    inner = [lower + (upper - lower) * step // count for step in range(1, count)]
    edges: list[int | None] = [None, *inner, None]
    return [[edges[step], edges[step + 1]] for step in range(count)]


class PostgresSource(DataSource):
    """Registered as a subclass that has the DSN."""

    dsn: ClassVar[SecretDsn]
    called: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls.called

    def reader(self, schema: StructType) -> PostgresReader:
        return PostgresReader(self.dsn, dict(self.options), schema)


class PostgresReader(DataSourceReader):
    """The options of a read.

    `table`; `pieces` (JSON: a list of ranges for each partition) over `column`; `only` (JSON: values by
    column); `one_scan`; `snapshot`, an exported name of Postgres; `guard` (JSON), what the hot table's marks must still
    be if the snapshot is gone; `seconds` after which Postgres ends the read.
    """

    def __init__(self, dsn: SecretDsn, options: Mapping[str, str], schema: StructType) -> None:
        self.dsn = dsn
        self.columns = columns_of(schema)
        self.table = ".".join(quoted(part) for part in options["table"].split("."))
        self.pieces = json.loads(options["pieces"])
        self.column = options["column"]
        self.snapshot = options.get("snapshot", "")
        self.guard = json.loads(options.get("guard") or "null")
        self.milliseconds = round(1000 * float(options.get("seconds") or 0))
        self.pushes = bool(options.get("one_scan"))
        self.conditions = [self._equal(name, value) for name, value in json.loads(options.get("only") or "{}").items()]

    def _equal(self, name: str, value: str | int) -> str:
        sql = condition(EqualTo((name,), value), self.columns)
        if sql is None:
            raise BadInput(f"rows cannot be selected by {name}", where="only")
        return sql

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for item in filters:
            sql = condition(item, self.columns) if self.pushes else None
            if sql is None:
                yield item
            else:
                self.conditions.append(sql)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(piece) for piece in self.pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with driver_errors(self.dsn, "read"), open_session(self.dsn) as connection:
            held = self._begin(connection)
            if self.guard is not None and not held:
                self._check_unmoved(connection, partition.value)
            with connection.cursor() as cursor:
                cursor.execute(self._query(partition.value))
                for batch in cursor.fetch_record_batch():
                    yield converted(batch, list(self.columns.values()))

    def _begin(self, connection: Any) -> bool:
        """Read in the snapshot, if it is still held; otherwise in a new one, which a guard may then check."""
        if self.milliseconds:
            run(connection, f"SET statement_timeout = {self.milliseconds}")
            connection.commit()
        run(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if not self.snapshot:
            return False
        try:
            run(connection, f"SET TRANSACTION SNAPSHOT '{_snapshot_name(self.snapshot)}'")
        except driver_error():
            if self.guard is None:
                raise SnapshotMoved("the snapshot of this read is no longer held") from None
            connection.rollback()
            run(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return False
        return True

    def _check_unmoved(self, connection: Any, piece: list[list[int]]) -> None:
        """Check the marks: a rewritten block has a higher seq than the view saw; a swept or removed one is missing."""
        version, commit, up_to_seq = self.guard
        query = (
            f"SELECT count(*), coalesce(max(seq), 0) FROM trace_meta.hot_blocks"  # noqa: S608 - numbers and an id
            f" WHERE dataset_version = '{_hex(version)}' AND {ranges('number', piece)}"
            f" AND (compacted_in IS NULL OR compacted_in > {int(commit)})"
        )
        with connection.cursor() as cursor:
            cursor.execute(query)
            count, seq = cursor.fetchone()
        if count != sum(stop - start for start, stop in piece) or seq > up_to_seq:
            raise SnapshotMoved("blocks were rewritten while they were read; read again")

    def _query(self, piece: list[list[int | None]]) -> str:
        selected = ", ".join(column.selected for column in self.columns.values())
        where = list(self.conditions)
        if self.column:
            where.append(ranges(self.column, piece))
        # The parts are made by `sql_text.py`: quoted names and typed literals.
        return f"SELECT {selected} FROM {self.table} WHERE {' AND '.join(where or ['true'])}"  # noqa: S608


def converted(batch: pa.RecordBatch, columns: Sequence[RequestedColumn]) -> pa.RecordBatch:
    """Convert to the schema: text to decimals, wide integers to narrow ones."""
    arrays = [batch.column(place).cast(column.arrow) for place, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


_registering = threading.Lock()
_names: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()


def _registered(spark: SparkSession, dsn: str) -> str:
    """Return the name of this DSN's source in this session."""
    with _registering:
        names = _names.setdefault(spark, {})
        if dsn not in names:
            called = f"trace_postgres_{secrets.token_hex(8)}"
            spark.dataSource.register(_class(called, SecretDsn(dsn)))
            names[dsn] = called
        return names[dsn]


def _class(called: str, dsn: SecretDsn) -> type[DataSource]:
    """A local class: it cannot be imported by name, so it is pickled whole, with the DSN."""
    return type("TracePostgres", (PostgresSource,), {"dsn": dsn, "called": called, "__module__": "__main__"})


def _snapshot_name(name: str) -> str:
    if not set(name) <= set("0123456789ABCDEFabcdef-"):
        raise BadInput("this is not the name of a snapshot", where="snapshot")
    return name


def _hex(version: str) -> str:
    return str(UUID(version))
