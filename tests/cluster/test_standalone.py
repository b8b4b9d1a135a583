"""A DAG on a real standalone cluster by one setting, TRACE_SPARK__MASTER; a Spark worker is killed in the middle.

About 45 s on two free cores: a master, two Spark workers and `trace worker` are processes of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil
import pytest

from tests.support.spark.cluster import SparkCluster, family_of, holding, kill, marks_in, trace_worker
from tests.support.spark.functions import PARTS
from tests.support.systems.operators import OperatorSystem
from tests.support.systems.walk import walking
from tests.support.waiting import until
from tracelake.operators.api.context import Resources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio

FILES, ROWS = 4, 25
DAG = """
name: far
defaults: {runtime: ecs_platform}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: numbers
    operator: read_files
    config: {path: in, format: csv, columns: [id bigint], partition: whole}
    inputs: [{from: {job: go}}]
  - name: tens
    operator: python
    config: {function: "tests.support.spark.functions:held", args: {folder: FOLDER}, mode: full, files: 2}
    inputs: [{from: {job: numbers}}]
  - name: sums
    operator: sql
    config: {mode: full, query: "SELECT count(*) AS rows, sum(ten) AS total FROM tens"}
    inputs: [{from: {job: tens}}]
publish:
  numbers: {job: numbers}
  tens: {job: tens}
  sums: {job: sums}
"""


@pytest.mark.timeout(1200)
async def test_a_spark_worker_is_killed_in_the_middle_and_the_dag_ends_with_every_row_once(
    cluster: SparkCluster, state_db: str, queue_db: str, data_db: str, tmp_path: Path
) -> None:
    files, marks = tmp_path / "files", tmp_path / "marks"
    for folder in (files / "in", marks):
        folder.mkdir(parents=True)
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        (files / "in" / f"{number}.csv").write_text("id\n" + "".join(f"{item}\n" for item in ids))
    master = cluster.master()
    workers = [cluster.worker(master), cluster.worker(master)]
    async with walking(state_db, queue_db, tmp_path) as walk:
        system = OperatorSystem(walk, cast("SparkSession", None), Resources(), tmp_path)  # Spark is elsewhere
        await system.deploy(DAG.replace("FOLDER", str(marks)))
        async with trace_worker(walk, tmp_path, (queue_db, data_db), cluster.settings(master)) as pid:
            await system.trigger("far", "go")
            killed = await until_both_are_busy(marks, workers, pid)
            kill(family_of(killed))
            (marks / "go").touch()
            await system.until(
                "SELECT EXISTS (SELECT FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'sums')"
            )
            states = await system.settled()
        assert {job: states[job] for job in ("numbers", "tens", "sums")} == {
            "numbers": ["Completed"],
            "tens": ["Completed"],
            "sums": ["Completed"],
        }, await system.error("tens")
        assert await system.fetch("SELECT FROM tasks WHERE attempt > 1") == [], "Spark made up for it by itself"
        tens = await system.rows("tens")
        assert [row["ten"] for row in tens] == [10 * number for number in range(FILES * ROWS)]
        assert {Path(row["package"]).parts[-3] for row in tens} == {"tracelake.zip"}, "the package was sent along"
        assert await system.rows("sums") == [{"rows": FILES * ROWS, "total": 10 * sum(range(FILES * ROWS))}]
        for name in ("numbers", "tens", "sums"):
            versions = await system.fetch(
                "SELECT FROM partition_versions p JOIN datasets d ON d.id = p.dataset_uuid WHERE d.name = $1", name
            )
            assert len(versions) == 1, f"{name} was committed once"
    assert len(marks_in(marks)) > PARTS, "what the dead worker was running was repeated"


async def until_both_are_busy(marks: Path, workers: list[int], trace_worker_pid: int) -> int:
    """Waits until partitions are held in an executor of each worker; returns one of the workers."""

    def held_in() -> list[int] | None:
        assert psutil.pid_exists(trace_worker_pid)
        found = holding(marks, workers)
        return found if len(found) == len(workers) else None

    return (await until(held_in, "partitions are held in both workers", every=0.05))[0]
