"""Postgres rows through Spark: one snapshot for all partitions, filters in Postgres, no secret shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as st

from tests.support.evaluate_filter import holds
from tests.support.postgres import RunningServer
from tests.support.spark.hot_tables import block_hash, chain, hot_table, rows_of, unheld
from tests.support.spark.session import a_session
from tracelake.data.filter_column import as_column
from tracelake.data.hot.reader import pieces_of, read_hot, read_with_cold, spark_schema
from tracelake.data.hot.sweep import mark_compacted, sweep
from tracelake.data.hot.tables import HotTable, ensure
from tracelake.data.hot.view import Run, held, view_of
from tracelake.data.hot.writer import rewrite
from tracelake.data.postgres.secret_dsn import SecretDsn
from tracelake.data.postgres.source import cut, read_postgres
from tracelake.data.postgres.sql_text import columns_of
from tracelake.data.postgres.staging import make_staging, sweep_staging
from tracelake.data.postgres.worker_connection import driver_errors, open_session, run
from tracelake.domain.filter.parse import parse_where
from tracelake.errors import BadInput, DatabaseUnavailable, SnapshotMoved
from tracelake.spark.failures import typed
from tracelake.store.migrate import Database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Connection = psycopg.Connection[Any]


def schema_of(**types: st.DataType) -> st.StructType:
    return st.StructType([st.StructField(name, kind) for name, kind in types.items()])


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, and three attempts for every task."""
    with a_session(tmp_path_factory.mktemp("rows"), master="local[2,3]") as session:
        yield session


@pytest.fixture(scope="module")
def dsn(postgres: RunningServer, template: Callable[[Database], str]) -> Iterator[str]:
    """One database for all: a worker's connection to a new one takes longer than the tests."""
    yield postgres.create_database("spark_rows", template("data"))
    postgres.drop_database("spark_rows")


@pytest.fixture
def data(dsn: str) -> Iterator[Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def test_all_partitions_read_the_held_snapshot_even_after_a_reorg(
    spark: SparkSession, dsn: str, data: Connection
) -> None:
    table = filled(data, 40)
    with held(dsn) as snapshot:
        view = view_of(snapshot, table, start=0, stop=1_000, commit=0)
        rows = read_hot(spark, dsn, view, partitions=4)
        rewrite(data, {table: rows_of([])}, chain(5, 1, "b", block_hash(4, "a")), replace_from=5)
        assert numbers(rows) == list(range(40))
        assert rows.rdd.getNumPartitions() == 4
    with held(dsn) as snapshot:
        later = view_of(snapshot, table, start=0, stop=1_000, commit=0)
        assert numbers(read_hot(spark, dsn, later)) == list(range(5))


def test_without_a_held_snapshot_a_read_is_consistent_or_refused(
    spark: SparkSession, dsn: str, data: Connection
) -> None:
    table = filled(data, 10)
    with unheld(dsn) as moment:
        view = view_of(moment, table, start=0, stop=1_000, commit=0)
    with held(dsn) as snapshot:
        lost = view_of(snapshot, table, start=2, stop=8, commit=0)
    assert numbers(read_hot(spark, dsn, view, partitions=2)) == list(range(10))
    assert numbers(read_hot(spark, dsn, lost)) == list(range(2, 8))
    mark_compacted(data, table, start=0, stop=1, up_to_seq=view.up_to_seq, commit=1)
    assert numbers(read_hot(spark, dsn, view)) == list(range(10)), "a compaction changes nothing for an older commit"
    rewrite(data, {table: rows_of([])}, chain(9, 1))
    assert numbers(read_hot(spark, dsn, lost)) == list(range(2, 8)), "it does not read block 9"
    assert isinstance(refusal(read_hot(spark, dsn, view, partitions=2)), SnapshotMoved)
    sweep(data, table, timedelta(0))
    with unheld(dsn) as moment:
        assert view_of(moment, table, start=0, stop=1_000, commit=1).runs == (Run(1, 10),)


def test_hot_and_cold_rows_form_one_table_without_overlap_or_gap(
    spark: SparkSession, dsn: str, data: Connection
) -> None:
    """Cold to 29, of which 10 to 19 were rewritten; a reorg removed 25 and later and added 25 and 26."""
    table = hot_table()
    ensure(data, table)
    rewrite(data, {table: rows_of([(n, 0, 1) for n in range(30)])}, chain(0, 30))
    with unheld(dsn) as moment:
        seq = view_of(moment, table, start=0, stop=30, commit=0).up_to_seq
    mark_compacted(data, table, start=0, stop=30, up_to_seq=seq, commit=1)
    rewrite(data, {table: rows_of([(n, 0, 2) for n in range(10, 20)])}, chain(10, 10))
    rewrite(data, {table: rows_of([(25, 0, 3)])}, chain(25, 2, "b", block_hash(24, "a")), replace_from=25)
    sweep(data, table, timedelta(0))
    cold = spark.createDataFrame([(n, 0, 1) for n in range(30)], spark_schema(table.schema))
    expected = [(n, 2 if 10 <= n < 20 else 1) for n in range(25)] + [(25, 3)]
    with held(dsn) as snapshot:
        view = view_of(snapshot, table, start=0, stop=1_000, commit=1)
        both = read_with_cold(spark, dsn, view, cold, columns=["block_number", "content"])
        assert sorted(map(tuple, both.collect())) == expected
        odd = read_with_cold(spark, dsn, view, cold, predicate=(F.col("content") > 1) & (F.col("block_number") < 12))
        assert sorted(map(tuple, odd.collect())) == [(10, 0, 2), (11, 0, 2)]


def test_postgres_and_spark_filter_numbers_of_any_size_alike(spark: SparkSession, dsn: str, data: Connection) -> None:
    wei, most = 10**21, 10**38 - 1
    values = [
        (n, None if n == 0 else n - 2, item) for n, item in enumerate([None, 0, wei - 1, wei, wei + 1, most, -most])
    ]
    data.execute("DROP TABLE IF EXISTS hot.wei; CREATE TABLE hot.wei (n int, whole bigint, wei numeric(38,0))")
    data.cursor().executemany("INSERT INTO hot.wei VALUES (%s, %s, %s)", values)
    schema = schema_of(n=st.IntegerType(), whole=st.LongType(), wei=st.DecimalType(38, 0))
    here = spark.createDataFrame(read_postgres(spark, dsn, "hot.wei", schema).collect(), schema)
    wheres = [
        f"{column} {op} {number}"
        for column in ("whole", "wei")
        for op in ("=", "<>", "<", ">=")
        for number in (2**63, wei, -most, "0.5")
    ]
    wheres += [f"wei IN ({wei}, {most}, 0.5)", f"NOT whole IN (1, {wei})", f"wei > {wei} OR whole IS NULL"]
    for where in wheres:
        tree = parse_where(where)
        there = read_postgres(spark, dsn, "hot.wei", schema, one_scan=True)
        found = [
            sorted(row["n"] for row in frame.where(as_column(tree, frame)).select("n").collect())
            for frame in (there, here)
        ]
        named = [dict(zip(("n", "whole", "wei"), row, strict=True)) for row in values]
        assert found == [[row["n"] for row in named if holds(tree, row) is True]] * 2, where


def test_many_separate_ranges_of_hot_blocks_are_read_and_excluded_from_the_cold_rows(
    spark: SparkSession, dsn: str, data: Connection
) -> None:
    table = hot_table()
    ensure(data, table)
    for number in range(0, 140, 2):
        rewrite(data, {table: rows_of([(number, 0, 2)])}, chain(number, 1))
    cold = spark.createDataFrame([(n, 0, 1) for n in range(140)], spark_schema(table.schema))
    with held(dsn) as snapshot:
        view = view_of(snapshot, table, start=0, stop=130, commit=7)
        assert len(view.runs) == 65
        rows = read_with_cold(spark, dsn, view, cold, partitions=3).collect()
    assert sorted(map(tuple, rows)) == [(n, 0, 1 if n % 2 else 2) for n in range(130)]


def test_an_empty_view_is_an_empty_table(spark: SparkSession, dsn: str, data: Connection) -> None:
    table = filled(data, 3)
    with held(dsn) as snapshot:
        rows = read_hot(spark, dsn, view_of(snapshot, table, start=50, stop=60, commit=0))
        assert (rows.count(), rows.columns) == (0, list(table.schema.names))
        with pytest.raises(BadInput):
            read_hot(spark, dsn, view_of(snapshot, table, start=0, stop=9, commit=0), columns=["nothing"])


ALL_TYPES = """place bigint PRIMARY KEY, flag bool, tiny smallint, small smallint, middle int, single real,
    double double precision, words text, raw bytea, amount numeric(20,2), day date, moment timestamptz,
    local timestamp, u256 numeric(78,0), extra jsonb"""
SCHEMA = schema_of(
    place=st.LongType(),
    flag=st.BooleanType(),
    tiny=st.ByteType(),
    small=st.ShortType(),
    middle=st.IntegerType(),
    single=st.FloatType(),
    double=st.DoubleType(),
    words=st.StringType(),
    raw=st.BinaryType(),
    amount=st.DecimalType(20, 2),
    day=st.DateType(),
    moment=st.TimestampType(),
    local=st.TimestampNTZType(),
    u256=st.StringType(),
    extra=st.StringType(),
)
FULL = (
    *(1, True, -128, 2**15 - 1, -(2**31), 0.5, 1e300, 'it\'s \\ "é"', bytearray(b"\0\xff\0"), Decimal("-12.30")),
    *(date(1969, 12, 31), datetime(2020, 1, 1, 12, 30, 0, 1, UTC), datetime(1999, 1, 1, 1, 1)),  # noqa: DTZ001
    *(str(2**256 - 1), '{"a": [1, null]}'),
)


def test_every_type_round_trips_through_spark_with_nulls(spark: SparkSession, dsn: str, data: Connection) -> None:
    data.execute(f"CREATE TABLE hot.all_types ({ALL_TYPES})".encode())
    nulls = (2, *[None] * 14)
    given = spark.createDataFrame([FULL, nulls], SCHEMA)
    insert = f"INSERT INTO hot.all_types VALUES ({', '.join(['%s'] * len(FULL))})"  # noqa: S608 - as many marks as values
    data.cursor().executemany(insert.encode(), [FULL, nulls])
    back = read_postgres(spark, dsn, "hot.all_types", SCHEMA).orderBy("place")
    assert back.schema == SCHEMA
    expected = given.orderBy("place").collect()  # as Spark shows its own
    assert back.collect() == expected
    for predicate in PREDICATES:
        filtered = read_postgres(spark, dsn, "hot.all_types", SCHEMA, one_scan=True).filter(predicate)
        assert places(filtered) == places(given.filter(predicate)), predicate
        assert not left_to_spark(filtered), predicate
        assert left_to_spark(back.filter(predicate)), "a frame that may be read twice is not filtered by Postgres"
    assert left_to_spark(read_postgres(spark, dsn, "hot.all_types", SCHEMA, one_scan=True).filter("place % 2 = 1"))


PREDICATES = [
    "flag",
    "tiny = -128 AND small > 5 AND middle < 0",
    "single = 0.5 AND double >= 1e299",
    "words = 'it\\'s \\\\ \"é\"'",
    "words <= 'j' AND words LIKE 'it%' AND words LIKE '%s %'",
    "raw = X'00ff00' AND raw < X'01'",
    "amount < -12.29 AND amount IN (-12.30, 5)",
    "day = DATE'1969-12-31'",
    "moment = TIMESTAMP'2020-01-01 12:30:00.000001'",
    "moment > TIMESTAMP'2020-01-01 12:30:00'",
    "local <= TIMESTAMP_NTZ'1999-01-01 01:01:00'",
    "words IS NULL AND place <> 5",
    "place IN (2, 3) AND u256 <=> NULL",
]


def test_scans_of_one_frame_do_not_filter_each_other(spark: SparkSession, dsn: str, data: Connection) -> None:
    data.execute("CREATE TABLE hot.shared AS SELECT n, n % 2 AS odd FROM generate_series(0::bigint, 6) AS n")
    schema = schema_of(n=st.LongType(), odd=st.LongType())
    rows = read_postgres(spark, dsn, "hot.shared", schema)
    assert numbered(rows.where("n > 4").unionAll(rows.where("n < 2"))) == [0, 1, 5, 6]
    assert numbered(rows.where("n > 4").unionAll(rows)) == [0, 1, 2, 3, 4, 5, 5, 6, 6]
    assert numbered(rows) == list(range(7))
    odd = read_postgres(spark, dsn, "hot.shared", schema, only={"odd": 1})
    assert numbered(odd.where("n > 4").unionAll(odd)) == [1, 3, 5, 5]
    assert numbered(read_postgres(spark, dsn, "hot.shared", schema, only={"odd": 1}, one_scan=True).where("n > 2")) == [
        3,
        5,
    ]


def numbered(rows: DataFrame) -> list[int]:
    return sorted(row.n for row in rows.collect())


def test_partitions_cover_all_rows_whatever_the_bounds_are(spark: SparkSession, dsn: str, data: Connection) -> None:
    data.execute("CREATE TABLE hot.partitioned AS SELECT n, -n AS m FROM generate_series(-5::bigint, 50) AS n")
    data.execute("INSERT INTO hot.partitioned VALUES (NULL, 0)")
    rows = read_postgres(
        spark, dsn, "hot.partitioned", schema_of(n=st.LongType()), partition_column="n", upper=40, partitions=4
    )
    assert rows.rdd.getNumPartitions() == 4
    found = [row.n for row in rows.collect()]
    assert sorted(found, key=lambda n: -99 if n is None else n) == [None, *range(-5, 51)]


def test_no_password_is_shown_by_plans_errors_or_objects(spark: SparkSession, dsn: str, data: Connection) -> None:
    fields = conninfo_to_dict(dsn)
    password = str(fields["password"])
    assert len(password) > 10
    table = filled(data, 3)
    with held(dsn) as snapshot:
        rows = read_hot(spark, dsn, view_of(snapshot, table, start=0, stop=9, commit=0)).filter("content > 0")
        execution = rows._jdf.queryExecution()
        shown = [execution.toString(), execution.stringWithStats(), execution.logical().toJSON(), str(rows)]
        shown += [execution.optimizedPlan().toJSON(), execution.executedPlan().toJSON()]
    missing = read_postgres(spark, dsn, "hot.missing", schema_of(n=st.LongType()))
    wrong = "a/wrong@pass word%"
    nowhere = make_conninfo(dsn, password=wrong, host="127.0.0.1", port=1)
    refused = read_postgres(spark, nowhere, "hot.missing", schema_of(n=st.IntegerType()))
    errors = [raised(missing), raised(refused)]
    assert isinstance(typed(errors[0]), BadInput)
    assert isinstance(typed(errors[1]), DatabaseUnavailable)
    shown += [str(error) + repr(error) for error in errors]
    shown += [repr(SecretDsn(dsn)), str(vars(refused)), SecretDsn(dsn).redact(f"at {dsn} with {password}")]
    assert all(text for text in shown)
    assert [text for text in shown if password in text or wrong in text or dsn in text] == []


def test_an_old_staging_table_of_a_killed_process_is_dropped(data: Connection) -> None:
    make_staging(data, columns_of(schema_of(k=st.LongType())))
    assert staging(data) == 1
    assert sweep_staging(data, timedelta(hours=1)) == 0
    assert sweep_staging(data, timedelta(seconds=-5)) == 1
    assert staging(data) == 0


def test_ranges_are_distributed_evenly_and_completely() -> None:
    runs = [Run(0, 5), Run(10, 11), Run(20, 30)]
    wanted = [number for run in runs for number in range(run.start, run.stop)]
    for partitions in range(1, 20):
        pieces = pieces_of(runs, partitions)
        assert [n for piece in pieces for start, stop in piece for n in range(start, stop)] == wanted
        assert len(pieces) <= partitions
    assert cut(0, 10, 3) == [[None, 3], [3, 6], [6, None]]
    assert cut(0, 0, 3) == [[None, None]]


def filled(data: Connection, count: int) -> HotTable:
    table = hot_table()
    ensure(data, table)
    rewrite(data, {table: rows_of([(n, 0, n) for n in range(count)])}, chain(0, count))
    return table


def numbers(rows: DataFrame) -> list[int]:
    return sorted(row.block_number for row in rows.collect())


def places(rows: DataFrame) -> list[int]:
    return sorted(row.place for row in rows.collect())


def left_to_spark(rows: DataFrame) -> bool:
    return "Filter" in rows._jdf.queryExecution().optimizedPlan().toString()


def raised(rows: DataFrame) -> BaseException:
    with pytest.raises(Exception, match=r".") as error:
        rows.collect()
    return error.value


def refusal(rows: DataFrame) -> BaseException | None:
    return typed(raised(rows))


def staging(data: Connection) -> int:
    row = data.execute("SELECT count(*) FROM pg_class WHERE relnamespace = 'staging'::regnamespace AND relkind = 'r'")
    found = row.fetchone()
    return int(found[0]) if found else -1


def test_a_worker_connection_recovers_after_an_outage(data_db: str) -> None:
    select_one(data_db)
    let_in(data_db, allowed=False)
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            select_one(data_db)
    let_in(data_db, allowed=True)
    for _ in range(3):
        select_one(data_db)


def select_one(dsn: str) -> None:
    secret = SecretDsn(dsn)
    with driver_errors(secret, "read"), open_session(secret) as connection:
        run(connection, "SELECT 1")


def let_in(dsn: str, *, allowed: bool) -> None:
    name = str(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as connection:
        word = sql.SQL("true" if allowed else "false")
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(sql.Identifier(name), word))
