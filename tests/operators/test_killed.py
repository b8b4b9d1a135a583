"""kill -9 of a worker in the middle of every operator: the retry commits, and what the dead one wrote is never seen."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.operators.rig import Rig
from tests.walk.walking import TOKEN, working

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]

ROOT = Path(__file__).parents[2]
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


async def test_a_killed_worker_leaves_garbage_and_the_retry_counts(rig: Rig, queue_db: str, tmp_path: Path) -> None:
    (rig.folder / "files" / "in").mkdir()
    (rig.folder / "files" / "in" / "a.csv").write_text("id\n1\n2\n")
    await rig.deploy(ROWS)
    await rig.run("rows", "ask", start=0, end=4)
    await rig.deploy(DAG.replace("BOTH", BOTH))
    walk = rig.walk
    given = {
        "queue": queue_db,
        "internal": walk.doors["dispatcher_internal"],
        "task": walk.doors["dispatcher_task"],
        "ca": str(walk.ca),
        "token": TOKEN,
        "objects": str(rig.folder / "objects"),
        "files": str(rig.folder / "files"),
        "home": str(tmp_path / "victim"),
    }
    victim = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.operators.victim"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert victim.stdin is not None
        victim.stdin.write(json.dumps(given).encode() + b"\n")
        await victim.stdin.drain()
        async with asyncio.timeout(240):
            await heard(victim, "ready", 1)
            await rig.trigger("d", "go", start=0, end=4)
            await heard(victim, "held", len(JOBS))
    finally:
        victim.kill()
        await victim.wait()
    assert [await rig.partitions(name) for name in JOBS] == [[], [], [], []]
    pool = walk.control.pool
    await pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
    await rig.until("SELECT NOT EXISTS (SELECT FROM tasks WHERE status = 'Running')")
    await pool.execute("UPDATE tasks SET next_retry_at = now() WHERE status = 'Failed'")
    async with working(rig.worker("second")):
        await rig.until("SELECT count(*) >= 4 FROM tasks WHERE status = 'Completed' AND attempt = 2")
        await rig.settled()
    for name, count in zip(JOBS, (5, 5, 1, 2), strict=True):
        (partition,) = await rig.partitions(name)
        assert partition["location"].endswith("/2/"), "the second attempt's folder"
        assert partition["row_count"] == count


async def heard(victim: asyncio.subprocess.Process, word: str, times: int) -> None:
    assert victim.stdout is not None
    while times:
        line = (await victim.stdout.readline()).decode().strip()
        assert line or victim.returncode is None, "the victim has ended"
        times -= line == word
