"""kill -9 of a worker in the middle of every operator: the retry commits, and what the dead one wrote is never seen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.operators.rig import Rig
from tests.operators.victim import a_victim, files_in, heard, swept, told_of
from tests.walk.walking import working

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]

ROWS = """
name: rows
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: numbers, operator: numbers, inputs: [{from: {job: ask}}]}
publish: {numbers: {job: numbers}}
"""
DAG = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: by_sql
    operator: sql
    config: {query: SELECT block_number FROM numbers}
    inputs: BOTH
  - name: by_python
    operator: python
    config: {function: "tests.operators.functions:doubled", args: {times: 2}}
    inputs: BOTH
  - name: by_quality
    operator: quality
    config: {checks: [{kind: continuous, input: numbers}]}
    inputs: BOTH
  - name: by_files
    operator: read_files
    config: {path: in, format: csv, partition: whole}
    inputs: [{from: {job: go}}]
publish:
  by_sql: {job: by_sql}
  by_python: {job: by_python}
  by_quality: {job: by_quality}
  by_files: {job: by_files}
"""
BOTH = "[{from: {job: go}}, {from: {dataset: numbers}, trigger: false}]"
JOBS = ("by_sql", "by_python", "by_quality", "by_files")


async def test_a_killed_worker_leaves_garbage_and_the_retry_counts(rig: Rig, queue_db: str) -> None:
    (rig.folder / "files" / "in").mkdir()
    (rig.folder / "files" / "in" / "a.csv").write_text("id\n1\n2\n")
    await rig.deploy(ROWS)
    await rig.run("rows", "ask", start=0, end=4)
    await rig.deploy(DAG.replace("BOTH", BOTH))
    async with asyncio.timeout(240), a_victim(told_of(rig.walk, queue_db, rig.folder)) as victim:
        await rig.trigger("d", "go", start=0, end=4)
        held = await heard(victim, "held", len(JOBS))
    left = [Path(key).parent for key in held]
    assert all(files_in(rig.folder, folder) for folder in left), "it had written something"
    assert [await rig.partitions(name) for name in JOBS] == [[], [], [], []]
    pool = rig.walk.control.pool
    await pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
    await rig.until("SELECT NOT EXISTS (SELECT FROM tasks WHERE status = 'Running')")
    await pool.execute("UPDATE tasks SET next_retry_at = now() WHERE status = 'Failed'")
    async with working(rig.worker("second")):
        await rig.until("SELECT count(*) >= 4 FROM tasks WHERE status = 'Completed' AND attempt = 2")
        await rig.settled()
    await swept(rig.walk)
    assert not any(files_in(rig.folder, folder) for folder in left)
    for name, count in zip(JOBS, (5, 5, 1, 2), strict=True):
        (partition,) = await rig.partitions(name)
        assert partition["location"].endswith("/2/"), "the second attempt's folder"
        assert partition["row_count"] == count
        assert len(await rig.rows(name)) == count, "the janitor left them"
