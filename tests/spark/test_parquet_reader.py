"""Files are read alike by Spark itself and by its Python workers. 15 s."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.support.spark.session import shared_session
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.data.files.parquet_reader import read_files
from tracelake.data.files.parquet_writer import OutputFolder, Written, write_frame
from tracelake.domain.access.object_names import Folder
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.ports import ObjectStore
from tracelake.wire.task.markers import hash_of_schema
from tracelake.wiring import s3_objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY_TYPE = """
SELECT id, CAST(id AS int) AS whole, CAST(id AS smallint) AS small, CAST(id AS tinyint) AS tiny, id / 3 AS ratio,
       CAST(id / 7 AS float) AS single, CAST(id AS decimal(38, 0)) AS large, CAST(id / 3 AS decimal(10, 2)) AS price,
       id % 2 = 0 AS even, IF(id % 3 = 0, NULL, concat('t', id)) AS text, unhex(concat('0', hex(id))) AS bytes,
       date_add(DATE '2025-01-01', CAST(id AS int)) AS day, timestamp_seconds(1750000000 + id) AS at,
       CAST(timestamp_seconds(1750000000 + id) AS timestamp_ntz) AS local,
       array(id, NULL) AS numbers, map('k', id) AS pairs, named_struct('a', id, 'b', array('x')) AS inner
  FROM range(20)
"""


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return shared_session()


def written(frame: DataFrame, store: ObjectStore, folder: Folder, files: int) -> list[Written]:
    return write_frame(frame, OutputFolder(store, folder), "rows", files=files)


def test_every_type_round_trips_on_disk_and_s3(spark: SparkSession, tmp_path: Path, seaweedfs: SeaweedFS) -> None:
    frame = spark.sql(EVERY_TYPE)
    folder = Folder("trace", ("reader", uuid4().hex))
    found = []
    for store in (DiskObjects(tmp_path), s3_objects(seaweedfs.objects_for("worker"))):
        files = written(frame, store, folder, 3)
        names = [folder.object(item.file.name) for item in files]
        read = read_files(spark, store, names, files[0].columns)
        found.append((read.schema, sorted(map(str, read.collect()))))
        assert read_files(spark, store, [], files[0].columns).schema == read.schema
    assert found[0] == found[1]
    assert found[0][1] == sorted(map(str, frame.collect()))


def test_the_same_rows_make_the_same_bytes_and_other_rows_make_others(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever compares checksums compares contents: a file holds neither its name nor when it was written."""
    store, sums = DiskObjects(tmp_path), list[set[str]]()
    for rows in (EVERY_TYPE, EVERY_TYPE, EVERY_TYPE.replace("range(20)", "range(21)")):
        files = written(spark.sql(rows), store, Folder("trace", ("same", uuid4().hex)), 1)
        sums.append({item.file.sha256 for item in files})
    assert sums[0] == sums[1] != sums[2]


@pytest.mark.parametrize(
    "called", ["with a space", "Jörg", "50%20off", "a#b", "x[1]", "{a,b}", "a*", "what?", "back\\", "~+&;'"]
)
def test_a_folder_may_have_any_name(spark: SparkSession, tmp_path: Path, called: str) -> None:
    """Including one that Hadoop would take for a pattern, beside a folder that matches it."""
    folder = Folder("trace", ("reader", uuid4().hex))
    for number, name in enumerate((called, "x1", "a", "ab", "whatx", "back")):
        [file] = written(spark.range(number, number + 1).toDF("n"), DiskObjects(tmp_path / name), folder, 1)
    names = [folder.object(file.file.name)]
    assert [row.n for row in read_files(spark, DiskObjects(tmp_path / called), names, file.columns).collect()] == [0]


def test_columns_are_matched_by_name_in_any_order_of_the_file(
    spark: SparkSession, tmp_path: Path, seaweedfs: SeaweedFS
) -> None:
    """The order of columns makes no other schema, so files of one dataset may differ in it."""
    frame = spark.sql("SELECT id AS a, id * 10 AS b FROM range(2)")
    for store in (DiskObjects(tmp_path), s3_objects(seaweedfs.objects_for("worker"))):
        folder = Folder("trace", ("reader", uuid4().hex))
        first, other = (
            write_frame(columns, OutputFolder(store, folder), stem)[0]
            for columns, stem in ((frame.select("a", "b"), "one"), (frame.select("b", "a"), "other"))
        )
        assert hash_of_schema(first.columns) == hash_of_schema(other.columns)
        read = read_files(spark, store, [folder.object(file.file.name) for file in (first, other)], first.columns)
        assert sorted((row.a, row.b) for row in read.collect()) == [(0, 0), (0, 0), (1, 10), (1, 10)]
