"""`read_files`: files of one folder, and of no other, become partitions; a line that does not fit is named."""

from __future__ import annotations

import gzip
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import ROOT
from tests.support.systems.operators import OperatorSystem
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.access.object_names import Folder
from tracelake.errors import InvalidDag
from tracelake.operators.api.context import Resources
from tracelake.operators.read_files import label_of

pytestmark = pytest.mark.anyio

DAGS = ROOT / "dags"


def dag(config: str) -> str:
    return f"""
name: d
defaults: {{runtime: ecs_platform, max_attempts: 1}}
jobs:
  - {{name: ask, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: load, operator: read_files, config: {config}, inputs: [{{from: {{job: ask}}}}]}}
publish: {{loaded: {{job: load}}}}
"""


def written(system: OperatorSystem, **files: str) -> Path:
    """Write files by name, `__` for the dot, to the folder that jobs may read."""
    assert system.resources.folder is not None
    for name, text in files.items():
        path = system.resources.folder / "in" / name.replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return system.resources.folder


async def retries(system: OperatorSystem) -> list[datetime | None]:
    """When each task of the job is retried, if it is."""
    found = await system.fetch(
        "SELECT t.next_retry_at FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'load'"
    )
    return [row["next_retry_at"] for row in found]


async def test_the_example_without_a_chain_runs_from_files_to_sql(system: OperatorSystem) -> None:
    await files_quickstart(system)


async def test_the_example_without_a_chain_makes_the_same_on_s3(s3_system: OperatorSystem) -> None:
    """12 s more: one S3 server, and files read by Spark's Python workers."""
    assert s3_system.walk.control.objects.for_spark(Folder.parse("s3://trace/x/").object("y")) is None
    await files_quickstart(s3_system)


async def files_quickstart(system: OperatorSystem) -> None:
    assert system.resources.folder is not None
    shutil.copytree(DAGS / "data", system.resources.folder, dirs_exist_ok=True)
    await system.deploy((DAGS / "files_quickstart.yaml").read_text())
    states = await system.run("files_quickstart", "load")
    # It recomputes all: of two waiting updates, the newer one's task runs and the other is superseded.
    summed = set(states.pop("sales_by_product"))
    assert "Completed" in summed, await system.error("sales_by_product")
    assert summed <= {"Completed", "Canceled"}
    assert {job: set(found) for job, found in states.items()} == {
        job: {"Completed"} for job in ("sales", "products", "sales_checked")
    }
    assert await system.rows("sales_by_product") == [
        {"product": "pot", "pieces": 4, "amount": Decimal("46.50")},
        {"product": "sugar", "pieces": 35, "amount": Decimal("26.75")},
        {"product": "tea", "pieces": 6, "amount": Decimal("20.00")},
    ]
    assert [partition["partition_key"] for partition in await system.partitions("sales")] == [
        "sales_2025_01",
        "sales_2025_02",
    ]
    assert (await system.rows("sales"))[0]["sold_at"] == datetime(2025, 1, 3, 9, 15, tzinfo=UTC)
    warned = [row for row in await system.rows("sales_checked") if not row["passed"]]
    assert [(row["check"], row["partition"]) for row in warned] == [("row_count", "sales_2025_02")]


async def test_a_guessed_schema_is_guessed_once(system: OperatorSystem) -> None:
    written(system, a__csv="id,what,at\n1,x,2025-01-01\n2,,2025-01-02\n")
    await system.deploy(dag("{path: in, format: csv}"))
    states = await system.run("d", "ask")
    assert states["load"] == ["Completed"], await system.error("load")
    schema = (await system.table("loaded")).schema
    assert [(field.name, str(field.type)) for field in schema] == [
        ("id", "int64"),
        ("what", "string"),
        ("at", "date32[day]"),
    ]
    written(system, b__csv="id,what,at\nnew,x,2025-01-01\n")
    states = await system.run("d", "ask", cursor=2)
    assert sorted(states["load"]) == ["Completed", "Failed"]
    assert "in/b.csv: line 2: id is 'new', which is no bigint" in await system.error("load")


async def test_a_worker_without_a_folder_of_files_fails_the_task_and_names_the_setting(system: OperatorSystem) -> None:
    await system.deploy(dag("{path: in, format: csv}"))
    assert (await replace(system, resources=Resources()).run("d", "ask"))["load"] == ["Failed"]
    message = await system.error("load")
    assert "worker.files_folder is not set (TRACE_WORKER__FILES_FOLDER" in message


async def test_bad_lines_are_left_out_up_to_the_number_given(system: OperatorSystem) -> None:
    text = 'id,n\n1,1\n2,two\n3\n4,"4\n5"\n6,6\n'
    written(system, a__csv=text)
    types = "columns: [id bigint, n int]"
    await system.deploy(dag(f"{{path: in, format: csv, {types}, bad_lines: 3}}"))
    states = await system.run("d", "ask")
    assert states["load"] == ["Completed"], await system.error("load")
    assert await system.rows("loaded") == [{"id": 1, "n": 1}, {"id": 6, "n": 6}]
    await system.deploy(dag(f"{{path: in, format: csv, {types}, bad_lines: 2}}"))
    await system.run("d", "ask")
    message = await system.error("load")
    assert "line 2" not in message
    assert "line 3: n is 'two', which is no int; line 4: 1 values, not 2; line 5:" in message


async def test_json_lines_lists_of_objects_and_parquet_are_read_alike(system: OperatorSystem) -> None:
    folder = written(
        system,
        a__json='{"id": 1, "v": 1.5, "tags": ["x"]}\n\n{"id": 2, "v": null, "more": 1}\n',
        b__json='[{"id": 3, "v": 2, "tags": null}]',
    )
    pq.write_table(pa.table({"id": pa.array([4], pa.int32()), "v": [4.0], "tags": ["z"]}), folder / "c.parquet")
    types = "columns: [id bigint, v double, tags string], partition: whole"
    await system.deploy(dag(f"{{path: in, format: json, {types}}}"))
    await system.run("d", "ask")
    assert await system.rows("loaded") == [
        {"id": 1, "v": 1.5, "tags": '["x"]'},
        {"id": 2, "v": None, "tags": None},
        {"id": 3, "v": 2.0, "tags": None},
    ]
    await system.deploy(dag(f"{{path: c.parquet, format: parquet, {types}}}"))
    await system.run("d", "ask")
    assert await system.rows("loaded") == [{"id": 4, "v": 4.0, "tags": "z"}]


async def test_parquet_of_other_writers_is_read_where_values_fit_and_rows_that_do_not_are_counted(
    system: OperatorSystem,
) -> None:
    folder = written(system, a__txt="") / "in"
    rows = {"n": pa.array([1, 2**63, 3], pa.uint64()), "hash": pa.array([b"ab", b"cd", b"ef"], pa.binary(2))}
    pq.write_table(pa.table(rows), folder / "a.parquet")
    types = "columns: [hash binary, n bigint, at timestamp], optional: [at]"
    await system.deploy(dag(f"{{path: in, format: parquet, {types}}}"))
    await system.run("d", "ask")
    assert "in/a.parquet: row 2: n is '9223372036854775808' (uint64), which is no bigint" in await system.error("load")
    await system.deploy(dag(f"{{path: in, format: parquet, {types}, bad_lines: 1}}"))
    await system.run("d", "ask")
    assert await system.rows("loaded") == [{"hash": b"ab", "n": 1, "at": None}, {"hash": b"ef", "n": 3, "at": None}]
    await system.deploy(dag("{path: in, format: parquet}"))
    await system.run("d", "ask")
    loaded = await system.table("loaded")
    assert loaded.schema.types == [pa.decimal128(20, 0), pa.binary()], "they were guessed, and hold every value"
    assert loaded["n"].to_pylist() == [1, 2**63, 3]


async def test_a_csv_file_may_lack_an_optional_column_and_no_other(system: OperatorSystem) -> None:
    written(system, a__csv="id\n1\n", b__csv="n,id\n2,2\n")
    types = "columns: [id bigint, n int]"
    await system.deploy(dag(f"{{path: in, format: csv, {types}}}"))
    await system.run("d", "ask")
    assert "in/a.csv: line 1: there is no column n" in await system.error("load")
    await system.deploy(dag(f"{{path: in, format: csv, {types}, optional: [n]}}"))
    await system.run("d", "ask")
    assert await system.rows("loaded") == [{"id": 1, "n": None}, {"id": 2, "n": 2}]


async def test_an_optional_column_that_is_no_column_is_refused_at_deploy(system: OperatorSystem) -> None:
    with pytest.raises(InvalidDag, match="`optional` names m, which `columns` does not"):
        await system.deploy(dag("{path: in, format: csv, columns: [id bigint, n int], optional: [m]}"))


async def test_nothing_outside_the_folder_is_read(system: OperatorSystem, tmp_path: Path) -> None:
    folder = written(system, a__csv="id\n1\n")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "s.csv").write_text("id\n42\n")
    (folder / "link").symlink_to(secret)
    (folder / "in" / "b.csv").symlink_to(secret / "s.csv")
    for path, message in (
        ("link", "leads out"),
        ("in", "in/b.csv leads out"),
        ("link/s.csv", "leads out"),
        ("no", "there is no no"),
    ):
        await system.deploy(dag(f"{{path: {path}, format: csv}}"))
        states = await system.run("d", "ask")
        assert set(states["load"]) == {"Failed"}
        assert message in await system.error("load")
        assert "42" not in await system.error("load")


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../b", "a\\b"])
async def test_a_path_outside_the_folder_is_refused_at_deploy(system: OperatorSystem, path: str) -> None:
    with pytest.raises(InvalidDag, match="goes down from the workers' folder"):
        await system.deploy(dag(f"{{path: '{path}', format: csv}}"))


async def test_files_with_the_same_partition_name_are_refused_and_can_be_one_whole_dataset(
    system: OperatorSystem,
) -> None:
    written(system, sales__2024__csv="id\n1\n", sales__2025__csv="id\n2\n")
    await system.deploy(dag("{path: in, format: csv}"))
    await system.run("d", "ask")
    message = await system.error("load")
    assert "sales.2025.csv and sales.2024.csv would be one partition, sales" in message
    assert "up to its first dot: rename one (sales_2024.csv), narrow `pattern`, or set `partition: whole`" in message
    await system.deploy(dag("{path: in, format: csv, partition: whole}"))
    states = await system.run("d", "ask")
    assert states["load"][-1] == "Completed", await system.error("load")
    assert await system.rows("loaded") == [{"id": 1}, {"id": 2}]


async def test_a_broken_file_is_refused_once_by_name_and_a_folder_named_as_a_file_is_left_alone(
    system: OperatorSystem,
) -> None:
    folder = written(system, a__csv="id\n1\n") / "in"
    (folder / "x.csv").mkdir()
    (folder / "b.csv.gz").write_bytes(gzip.compress(b"id\n2\n"))
    (folder / "c.csv").write_bytes("id\ncafé\n".encode("latin-1"))
    retried = "defaults: {runtime: ecs_platform, max_attempts: 3}"
    for pattern, message in (
        ("null", "in/b.csv.gz is packed with gzip, and packed files are not read (unpack it, or leave it out"),
        ("c*", "in/c.csv: line 2 is not UTF-8: byte 0xe9 (save the file as UTF-8)"),
    ):
        for columns in ("null", "[id string]"):
            text = dag(f"{{path: in, format: csv, pattern: {pattern}, columns: {columns}}}")
            await system.deploy(text.replace("defaults: {runtime: ecs_platform, max_attempts: 1}", retried))
            await system.run("d", "ask")
            assert message in await system.error("load")
            assert "Traceback" not in await system.error("load")
    assert await retries(system) == [None] * 4
    await system.deploy(dag("{path: in, format: csv, pattern: '[ax]*'}"))
    await system.run("d", "ask")
    assert await system.rows("loaded") == [{"id": 1}]


async def test_the_pattern_applies_to_a_path_of_one_file_too(system: OperatorSystem) -> None:
    written(system, a__csv="id\n1\n")
    await system.deploy(dag("{path: in/a.csv, format: csv, pattern: 'b*'}"))
    await system.run("d", "ask")
    assert "in/a.csv is a file whose name does not match b*" in await system.error("load")
    await system.deploy(dag("{path: in/a.csv, format: csv, pattern: 'a*'}"))
    await system.run("d", "ask")
    assert await system.rows("loaded") == [{"id": 1}]


async def test_the_error_names_a_file_whose_name_is_not_utf8(system: OperatorSystem) -> None:
    folder = written(system) / "in"
    folder.mkdir()
    (folder / os.fsdecode(b"caf\xe9.csv")).write_text("id\nx\n")
    await system.deploy(dag("{path: in, format: csv, columns: [id int]}"))
    await system.run("d", "ask")
    assert "in/caf\ufffd.csv: line 2: id is 'x', which is no int" in await system.error("load")


async def test_an_unavailable_object_store_is_one_sentence_and_retried(system: OperatorSystem) -> None:
    written(system, a__csv="id\n1\n")
    await system.deploy(dag("{path: in, format: csv}").replace("max_attempts: 1", "max_attempts: 2"))
    objects = system.walk.control.objects
    assert isinstance(objects, DiskObjects)
    shutil.rmtree(objects.root, ignore_errors=True)
    objects.root.write_text("a file in the place of the store")
    await system.run("d", "ask")
    message = await system.error("load")
    assert message.startswith("the object store does not answer: "), message
    assert "\n" not in message
    assert await retries(system) != [None]


def test_a_files_name_becomes_the_name_of_a_partition() -> None:
    assert label_of("2025-01.csv") == "2025-01"
    assert label_of("1-9.csv") == "file_1-9", "else it would be a range"
    assert label_of("all.json") == "file_all", "that is the whole"
    assert label_of("ünï côdé.csv.gz") == "_n__c_d_"
