"""Small files are read by one task without an exchange; larger ones by several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.access.object_names import Folder
from tracelake.query.checked_query import ONE_GO_BYTES, ONE_GO_FILES, ONE_GO_ROWS, ColdFiles, Relation
from tracelake.query.spark.sessions import Prepared
from tracelake.query.spark.views import Store, views_of
from tracelake.spark.plan_check import checked_frame
from tracelake.wire.task.markers import ColumnEntry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 10
FILES = 2


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(DiskObjects(tmp_path / "objects"), "postgresql://nobody@127.0.0.1/none")


@pytest.fixture
def small(store: Store) -> ColdFiles:
    folder = Folder.parse(f"s3://trace/datasets/{uuid4()}/{uuid4()}/")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"number": range(ROWS)}), sink)
    names = tuple(folder.object(f"part{part}.parquet") for part in range(FILES))
    for name in names:
        store.objects.put(name, sink.getvalue().to_pybytes())
    return ColdFiles((uuid4(), 1), (ColumnEntry("number", "bigint"),), names, bytes=1000, rows=FILES * ROWS)


def answered(spark: SparkSession, store: Store, files: ColdFiles) -> tuple[str, list[tuple[int, int]]]:
    """The plan of a query with a GROUP BY, a sort and a join, and its rows."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    relation = Relation("events", uuid4(), files.pin[0], 1, hot=False, cold=files)
    with views_of(Prepared(session), {"events": relation}, store, uuid4()) as views:
        view = views["events"]
        text = (
            f"SELECT a.number, count(*) AS n FROM {view} a JOIN {view} b ON a.number = b.number"  # noqa: S608
            " WHERE a.number < 2 GROUP BY a.number ORDER BY a.number"
        )
        frame: Any = checked_frame(session, text, frozenset([view]))
        plan = frame._jdf.queryExecution().executedPlan().toString()
        return plan, [tuple(row) for row in frame.collect()]


def test_small_files_are_read_grouped_sorted_and_joined_in_one_task(
    spark: SparkSession, store: Store, small: ColdFiles
) -> None:
    plan, rows = answered(spark, store, small)
    assert "hashpartitioning" not in plan
    assert "rangepartitioning" not in plan
    assert "PushedFilters: [IsNotNull(number), LessThan(number,2)]" in plan
    assert rows == [(0, FILES**2), (1, FILES**2)]


def test_many_bytes_rows_or_files_are_read_by_several_tasks(
    spark: SparkSession, store: Store, small: ColdFiles
) -> None:
    plan, rows = answered(spark, store, replace(small, bytes=ONE_GO_BYTES + 1))
    assert "hashpartitioning" in plan
    assert rows == [(0, FILES**2), (1, FILES**2)]
    assert small.in_one_go
    assert not replace(small, rows=ONE_GO_ROWS + 1).in_one_go
    assert not replace(small, files=small.files[:1] * (ONE_GO_FILES + 1)).in_one_go
