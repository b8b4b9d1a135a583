"""Plans are cached for repeated queries; rows never are, nor plans that depend on the time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.access.object_names import Folder
from tracelake.domain.filter.from_json import from_json
from tracelake.domain.sql.gate import check_sql
from tracelake.errors import InvalidSql
from tracelake.query.checked_query import ONE_GO_BYTES, Caller, CheckedQuery, ColdFiles, Relation
from tracelake.query.collect import collect
from tracelake.query.spark.plans import planned
from tracelake.query.spark.sessions import MOST_PLANS, Prepared
from tracelake.query.spark.views import Store, views_of
from tracelake.spark.plan_check import select
from tracelake.wire.task.markers import ColumnEntry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BYTES = 1024 * 1024
COUNT = "SELECT count(*) AS n FROM events"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(DiskObjects(tmp_path / "objects"), "postgresql://nobody@127.0.0.1/none")


@pytest.fixture
def prepared(spark: SparkSession) -> Prepared:
    made = Prepared(spark.newSession())
    made.plan_for(small=True)
    return made


def events(store: Store, rows: int, commit: int = 1) -> Relation:
    folder = Folder.parse(f"s3://trace/datasets/{uuid4()}/{uuid4()}/")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"number": range(rows), "text": ["now"] * rows}), sink)
    store.objects.put(folder.object("part.parquet"), sink.getvalue().to_pybytes())
    columns = (ColumnEntry("number", "bigint"), ColumnEntry("text", "string"))
    cold = ColdFiles((uuid4(), commit), columns, (folder.object("part.parquet"),), bytes=1000, rows=rows)
    return Relation("events", uuid4(), cold.pin[0], commit, hot=False, cold=cold)


def rows_of(prepared: Prepared, store: Store, relation: Relation, sql: str, max_rows: int = 100) -> list[list[object]]:
    checked = check_sql(sql, {"events"}, deterministic=False)
    caller = Caller(uuid4(), "a grant")
    query = CheckedQuery(uuid4(), caller, checked, {"events": relation}, max_rows=max_rows, seconds=60)
    with views_of(prepared, query.relations, store, caller.org_id) as views:
        table = collect(planned(prepared, query, views, BYTES), max_rows, BYTES).table
    return [list(row.values()) for row in table.to_pylist()]


def test_a_plan_is_made_once_and_its_rows_are_read_each_time(prepared: Prepared, store: Store) -> None:
    relation = events(store, 3)
    assert rows_of(prepared, store, relation, COUNT) == [[3]]
    (first,) = prepared.plans.values()
    assert rows_of(prepared, store, relation, COUNT) == [[3]]
    assert list(prepared.plans.values()) == [first]
    assert relation.cold is not None
    store.objects.delete(relation.cold.files)
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):
        rows_of(prepared, store, relation, COUNT)


def test_another_commit_or_limit_gets_another_plan(prepared: Prepared, store: Store) -> None:
    assert rows_of(prepared, store, events(store, 3), COUNT) == [[3]]
    later = events(store, 5, commit=2)
    assert rows_of(prepared, store, later, COUNT) == [[5]]
    numbers = "SELECT number FROM events ORDER BY number"
    assert len(rows_of(prepared, store, later, numbers, max_rows=2)) == 2
    assert len(rows_of(prepared, store, later, numbers)) == 5
    assert len(prepared.plans) == 4


@pytest.mark.parametrize(
    "expression",
    [
        "now()",
        "rand()",
        "unix_timestamp()",
        "CAST('now' AS TIMESTAMP)",
        "CAST(' Today' AS DATE)",
        "CAST(concat('no', 'w') AS TIMESTAMP)",
        "to_timestamp('now')",
        "to_date(concat(char(110), 'ow'))",
        "extract(year FROM 'now')",
        "year('tomorrow')",
        "TIMESTAMP 'now'",
    ],
)
def test_queries_with_time_or_random_functions_are_planned_each_time(
    prepared: Prepared, store: Store, expression: str
) -> None:
    rows_of(prepared, store, events(store, 1), f"SELECT {expression} AS x FROM events")  # noqa: S608 - a query of a test
    assert not prepared.plans


@pytest.mark.parametrize(
    "expression", ["CAST('2026-01-01' AS TIMESTAMP)", "try_cast(text AS DATE)", "unix_timestamp(DATE '2026-01-01')"]
)
def test_constant_times_do_not_prevent_a_cached_plan(prepared: Prepared, store: Store, expression: str) -> None:
    rows_of(prepared, store, events(store, 1), f"SELECT {expression} AS x FROM events")  # noqa: S608 - a query of a test
    assert len(prepared.plans) == 1


def test_a_plan_that_contains_rows_is_not_cached(prepared: Prepared, store: Store) -> None:
    relation = events(store, 3)
    joined = "SELECT count(*) AS n FROM events a JOIN events b ON a.number = b.number"
    assert rows_of(prepared, store, relation, joined) == [[3]]
    assert rows_of(prepared, store, relation, "SELECT (SELECT max(number) FROM events) AS m FROM events LIMIT 1") == [
        [2]
    ]
    assert not prepared.plans


def test_only_plans_over_small_unfiltered_files_are_cached(prepared: Prepared, store: Store) -> None:
    relation = events(store, 3)
    assert relation.cold is not None
    narrowed = replace(relation, filters=(from_json({"lt": ["number", 1]}),))
    assert rows_of(prepared, store, narrowed, COUNT) == [[1]]
    large = replace(relation, cold=replace(relation.cold, pin=(uuid4(), 1), bytes=ONE_GO_BYTES + 1))
    assert rows_of(prepared, store, large, COUNT) == [[3]]
    assert not prepared.plans


def test_a_session_caches_only_its_last_plans(prepared: Prepared) -> None:
    for number in range(MOST_PLANS + 3):
        prepared.keep_plan(number, None)  # type: ignore[arg-type]
    assert list(prepared.plans) == list(range(3, MOST_PLANS + 3))


def test_a_job_may_not_use_the_clock_even_by_implicit_casts_of_spark(spark: SparkSession) -> None:
    days = spark.sql("SELECT DATE'2026-01-01' AS day, 'nowhere' AS text")
    for query in ("SELECT day FROM days WHERE day < 'now'", "SELECT day FROM days WHERE day IN ('yesterday UTC')"):
        with pytest.raises(InvalidSql, match="another each time"):
            select(spark, check_sql(query, {"days"}), {"days": days})
    harmless = check_sql("SELECT day FROM days WHERE text <> 'now' AND day < '2027-01-01'", {"days"})
    assert select(spark, harmless, {"days": days}).count() == 1
