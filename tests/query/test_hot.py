"""Hot tables through the read-only role: by generation and organisation, and in one snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from tests.support.query.data_reader import reader_of
from tests.support.spark.hot_tables import chain, hot_table, rows_of
from tests.support.systems.query import SharedSpark
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.data.buffered.tables import BufferedTable
from tracelake.data.buffered.tables import ensure as make_buffered
from tracelake.data.hot.tables import HotTable, ensure
from tracelake.data.hot.writer import rewrite
from tracelake.domain.buffered import Column, Declaration
from tracelake.domain.sql.gate import check_sql
from tracelake.errors import InvalidSql, Unavailable
from tracelake.query.checked_query import Caller, CheckedQuery, Relation
from tracelake.query.spark.engine import SparkEngine
from tracelake.settings import QuerySettings

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio
SUM = "SELECT count(*) AS n, sum(content) AS s FROM live"


@pytest.fixture
def reader(data_db: str) -> str:
    return reader_of(data_db)


def filled(dsn: str, contents: list[int]) -> HotTable:
    table = hot_table()
    with psycopg.connect(dsn, autocommit=True) as connection:
        ensure(connection, table)
        rows = rows_of([(number, 0, content) for number, content in enumerate(contents)])
        rewrite(connection, {table: rows}, chain(0, len(contents)), replace_from=0)
    return table


def query(table: HotTable, org: UUID) -> CheckedQuery:
    live = Relation("live", table.dataset_uuid, table.dataset_version, 0, hot=True, cold=None)
    caller = Caller(org, ("user", uuid4()))
    return CheckedQuery(uuid4(), caller, check_sql(SUM, {"live"}), {"live": live}, 100, 240)


async def test_a_hot_table_is_read_by_the_read_only_role_and_for_its_own_organisation_only(
    data_db: str, reader: str, spark: SparkSession, tmp_path: Path
) -> None:
    table, other = filled(data_db, [5, 6, 7]), filled(data_db, [100])
    engine = SparkEngine(SharedSpark(spark), DiskObjects(tmp_path), reader, QuerySettings())
    found: Any = (await engine.run(query(table, table.org_id))).table
    assert found.to_pylist() == [{"n": 3, "s": 18}]
    with pytest.raises(Unavailable, match="nothing has been written"):
        await engine.run(query(other, table.org_id))
    with psycopg.connect(reader) as connection:
        connection.execute("SET TRANSACTION READ WRITE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(sql.SQL("DELETE FROM {}").format(table.identifier))
    with psycopg.connect(data_db) as admin:
        held = admin.execute("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'").fetchone()
    assert held == (0,), "no snapshot is held when the answer is there"


HIGH, LOW = "SELECT content AS n FROM live WHERE content > 7", "SELECT content FROM live WHERE content < 6"
IN_PLACES = {
    "SELECT content AS n FROM live WHERE content > 6": [7, 8],
    f"{HIGH} UNION ALL {LOW}": [5, 8],
    f"{HIGH} UNION ALL SELECT content FROM live": [5, 6, 7, 8, 8],  # noqa: S608 - a test's own words
    f"WITH x AS (SELECT content FROM live) {HIGH} UNION ALL {LOW}".replace("live WHERE", "x WHERE"): [5, 8],  # noqa: S608
    "SELECT a.content AS n FROM live a JOIN live b USING (block_number) WHERE a.content = 8 AND b.content > 7": [8],
    "SELECT content AS n FROM live WHERE content < (SELECT max(content) FROM live WHERE content < 8)": [5, 6],
}


async def test_a_query_that_scans_a_table_several_times_filters_each_scan_separately(
    data_db: str, reader: str, spark: SparkSession, tmp_path: Path
) -> None:
    table = filled(data_db, [5, 6, 7, 8])
    engine = SparkEngine(SharedSpark(spark), DiskObjects(tmp_path), reader, QuerySettings())
    for statement, found in IN_PLACES.items():
        checked = replace(query(table, table.org_id), checked=check_sql(statement, {"live"}))
        answer: Any = (await engine.run(checked)).table
        assert sorted(answer.column("n").to_pylist()) == found, statement


async def test_a_buffered_dataset_is_read_by_that_role_with_its_columns_and_for_its_own_organisation_only(
    data_db: str, reader: str, spark: SparkSession, tmp_path: Path
) -> None:
    declared = Declaration(
        (Column("k", "text", nullable=False), Column("content", "bigint", nullable=True)), ("k",), ()
    )
    ours, theirs = (BufferedTable(uuid4(), uuid4(), uuid4(), declared) for _ in range(2))
    with psycopg.connect(data_db, autocommit=True) as admin:
        for table in (ours, theirs):
            make_buffered(admin, table)
            for org, key, content in ((table.org_id, "a", 5), (table.org_id, "b", 6), (uuid4(), "a", 1000)):
                row = sql.SQL(
                    "INSERT INTO {} (org_id, producer_task_id, producer_attempt, publish_id, publish_seq, updated_at,"
                    " k, content) VALUES (%s, gen_random_uuid(), 1, gen_random_uuid(), 1, now(), %s, %s)"
                )
                admin.execute(row.format(table.identifier), (org, key, content))
    engine = SparkEngine(SharedSpark(spark), DiskObjects(tmp_path), reader, QuerySettings())
    live = Relation("live", ours.dataset_uuid, ours.dataset_version, 0, hot=True, cold=None)
    own_query = CheckedQuery(
        uuid4(), Caller(ours.org_id, ("user", uuid4())), check_sql(SUM, {"live"}), {"live": live}, 100, 240
    )
    found: Any = (await engine.run(own_query)).table
    assert found.to_pylist() == [{"n": 2, "s": 11}]
    foreign_query = replace(own_query, caller=Caller(theirs.org_id, ("user", uuid4())))
    with pytest.raises(Unavailable, match="nothing has been written"):
        await engine.run(foreign_query)
    internal_column = replace(own_query, id=uuid4(), checked=check_sql("SELECT org_id FROM live", {"live"}))
    with pytest.raises(InvalidSql):
        await engine.run(internal_column)
