"""kill -9 of a worker in the middle of every operator: the retry commits, and what the dead one wrote is never seen.

`block_follower` and `parquet_compact` are killed in `tests/chain_walk/test_storm.py`, at each of their points.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.operators.rig import Rig, operator
from tests.operators.test_evm_decode import write_logs
from tests.operators.victim import a_victim, files_in, heard, swept, told_of
from tests.walk.walking import working
from trace_platform.chain.devchain.handle import Devchain, running
from trace_platform.dispatcher.invalidate import invalidate

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]

ROWS = """
name: rows
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: numbers, operator: numbers, inputs: [{from: {job: ask}}]}
  - {name: logs, operator: some_logs, inputs: [{from: {job: ask}}]}
publish: {numbers: {job: numbers}, logs: {job: logs}}
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
  - name: by_ingest
    operator: cryo_ingest
    config: {rpc_pool: dev, tables: [blocks], chunk: 2}
    inputs: [{from: {job: go}}]
  - name: by_decode
    operator: evm_decode
    config: {abi: erc20, events: [transfer]}
    inputs: [{from: {dataset: logs}}]
publish:
  by_sql: {job: by_sql}
  by_python: {job: by_python}
  by_quality: {job: by_quality}
  by_files: {job: by_files}
  by_ingest: {job: by_ingest}
  by_decode: {job: by_decode}
"""
BOTH = "[{from: {job: go}}, {from: {dataset: numbers}, trigger: false}]"
ROW_COUNTS = {"by_sql": 5, "by_python": 5, "by_quality": 1, "by_files": 2, "by_ingest": 5, "by_decode": 1}


@pytest.fixture(scope="module")
def devchain() -> Iterator[Devchain]:
    with running(blocks=10) as chain:
        yield chain


async def test_a_killed_worker_leaves_garbage_and_the_retry_counts(rig: Rig, queue_db: str, devchain: Devchain) -> None:
    (rig.folder / "files" / "in").mkdir()
    (rig.folder / "files" / "in" / "a.csv").write_text("id\n1\n2\n")
    rig = replace(rig, resources=replace(rig.resources, rpc_pools={"dev": devchain.pool("a")}))
    with operator("some_logs", write_logs):
        await rig.deploy(ROWS)
        await rig.run("rows", "ask", start=0, end=4)
    await rig.deploy(DAG.replace("BOTH", BOTH))
    pools = {"dev": {"endpoints": f"a={devchain.node('a')}", "chain_id": devchain.chain_id}}
    async with asyncio.timeout(240), a_victim(told_of(rig.walk, queue_db, rig.folder, pools=pools)) as victim:
        await rig.trigger("d", "go", start=0, end=4)
        await decode_again(rig)
        left = await held_by_all(rig, victim)
    assert all(files_in(rig.folder, folder) for folder in left), "it had written something"
    assert [await rig.partitions(name) for name in ROW_COUNTS] == [[]] * len(ROW_COUNTS)
    pool = rig.walk.control.pool
    await pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
    await rig.until("SELECT NOT EXISTS (SELECT FROM tasks WHERE status = 'Running')")
    await pool.execute("UPDATE tasks SET next_retry_at = now() WHERE status = 'Failed'")
    done = "SELECT count(*) = $1 FROM tasks WHERE status = 'Completed' AND attempt = 2"
    async with working(rig.worker("second")):
        await rig.until(done, len(ROW_COUNTS))
        await rig.settled()
    await swept(rig.walk)
    assert not any(files_in(rig.folder, folder) for folder in left)
    for name, count in ROW_COUNTS.items():
        (partition,) = await rig.partitions(name)
        assert partition["location"].endswith("/2/"), "the second attempt's folder"
        assert partition["row_count"] == count, name
        assert len(await rig.rows(name)) == count, "the janitor left them"


async def decode_again(rig: Rig) -> None:
    """It follows logs, which are there already."""
    org = rig.walk.org
    await invalidate(
        rig.walk.control, org.id, org.user, "logs", start=0, end=4, reason="to see it done", request_id=uuid4()
    )


async def held_by_all(rig: Rig, victim: asyncio.subprocess.Process) -> list[Path]:
    """The folders of attempts that are about to put their marker: `.../attempts/{task}/{attempt}`, of every job."""
    folders: dict[str, Path] = {}
    while folders.keys() != ROW_COUNTS.keys():
        (key,) = await heard(victim, "held")
        folder = Path(key).parent
        name = "SELECT j.name FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE t.id = $1"
        folders[await rig.walk.control.pool.fetchval(name, UUID(folder.parent.name))] = folder
    return list(folders.values())
