"""Two `trace worker` processes, each with a Spark of its own, share one DAG; one of them is killed in the middle.

About 30 s on two free cores.
"""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.support.spark.cluster import family_of, holding, kill, trace_worker
from tests.support.systems.operators import OperatorSystem
from tests.support.systems.walk import walking
from tests.support.waiting import until
from tracelake.operators.api.context import Resources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio

FILES, ROWS = 4, 5
DAG = """
name: pair
defaults: {runtime: ecs_platform}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: numbers
    operator: read_files
    config: {path: in, format: csv, columns: [id bigint]}
    inputs: [{from: {job: go}}]
  - name: tens
    operator: python
    config: {function: "tests.support.spark.functions:held", args: {folder: FOLDER}}
    inputs: [{from: {job: numbers}}]
publish: {numbers: {job: numbers}, tens: {job: tens}}
"""
HELD = """
SELECT count(*) = $1 FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'tens' AND t.status = 'Running'
"""
LEFT_BY = "SELECT count(*) FROM tasks WHERE status = 'Running' AND worker_id LIKE '%:' || $1"
LEASES_END = "UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running' AND worker_id LIKE '%:' || $1"
AT_ONCE = "UPDATE tasks SET next_retry_at = now() WHERE status = 'Failed'"
DONE = """
SELECT count(*) = $1 FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'tens' AND t.status = 'Completed'
"""
ATTEMPTS = """
SELECT t.attempt, split_part(t.worker_id, ':', 2)::int AS pid, count(*) AS tasks
  FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'tens' GROUP BY 1, 2 ORDER BY 1
"""
COMMITTED = """
SELECT count(*) AS partitions, count(DISTINCT p.partition_key) AS keys, count(p.valid_to) AS replaced,
       (SELECT count(*) FROM commits c WHERE c.dataset_uuid = d.id) AS commits
  FROM partition_versions p JOIN datasets d ON d.id = p.dataset_uuid WHERE d.name = 'tens' GROUP BY d.id
"""


@pytest.mark.long  # with two Sparks what `faults/test_crash_points.py` shows of workers without one
@pytest.mark.timeout(1200)
async def test_one_of_two_workers_is_killed_and_every_partition_is_committed_once(
    state_db: str, queue_db: str, data_db: str, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    for folder in (tmp_path / "files" / "in", marks):
        folder.mkdir(parents=True)
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        (tmp_path / "files" / "in" / f"part_{number}.csv").write_text("id\n" + "".join(f"{item}\n" for item in ids))
    async with walking(state_db, queue_db, tmp_path) as walk, AsyncExitStack() as both:
        system = OperatorSystem(walk, cast("SparkSession", None), Resources(), tmp_path)  # Spark is elsewhere
        await system.deploy(DAG.replace("FOLDER", str(marks)))
        dsns = (queue_db, data_db)
        survivor = await both.enter_async_context(trace_worker(walk, tmp_path, dsns, _own(tmp_path, "one")))
        killed = await both.enter_async_context(trace_worker(walk, tmp_path, dsns, _own(tmp_path, "two"), code=-9))
        await system.trigger("pair", "go")
        await until_both_are_busy(system, marks, {survivor, killed})
        assert await walk.control.pool.fetchval(LEFT_BY, str(killed)) == FILES // 2
        both.callback(kill, family_of(killed)[1:])  # what it leaves behind ends by itself; not before the test, maybe
        os.kill(killed, signal.SIGKILL)
        await walk.control.pool.execute(LEASES_END, str(killed))
        await system.until("SELECT count(*) = $1 FROM tasks WHERE status = 'Failed'", FILES // 2)
        await walk.control.pool.execute(AT_ONCE)
        (marks / "go").touch()
        await system.until(DONE, FILES)
        await system.settled()
        attempts = [tuple(row) for row in await system.fetch(ATTEMPTS)]
        assert attempts == [(1, survivor, FILES // 2), (2, survivor, FILES // 2)]
        (committed,) = await system.fetch(COMMITTED)
        assert dict(committed) == {"partitions": FILES, "keys": FILES, "replaced": 0, "commits": FILES}
        assert [row["ten"] for row in await system.rows("tens")] == [10 * item for item in range(FILES * ROWS)]


def _own(folder: Path, name: str) -> dict[str, str]:
    """Two tasks at once, so that neither can have all four."""
    return {
        "TRACE_HOME": str(folder / name),
        "TRACE_WORKER__CONCURRENCY": str(FILES // 2),
        "TRACE_SPARK__MASTER": "local[1]",
        "TRACE_SPARK__DRIVER_MEMORY": "512m",
    }


async def until_both_are_busy(system: OperatorSystem, marks: Path, workers: set[int]) -> None:
    """All four are running, and rows are held in a Python worker below each of the two."""
    await system.until(HELD, FILES)
    await until(lambda: len(holding(marks, workers)) == len(workers), "rows are held below both workers", every=0.05)
