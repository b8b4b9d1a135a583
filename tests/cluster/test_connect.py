"""Operators on a real Spark Connect server by one setting, TRACE_SPARK__REMOTE: no JVM is in the worker then.

About 30 s on two free cores: a server from the pip package, `trace worker` and a dev chain are processes of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil
import pytest

from tests.support.chain.devchain import Devchain, running
from tests.support.spark.cluster import HOLD, LOAD, ConnectServer, family_of, trace_worker
from tests.support.systems.chain import FOLLOW, ChainSystem, equal, rows_of, truth
from tests.support.systems.operators import OperatorSystem
from tests.support.systems.walk import walking
from tests.support.verbs import cancel_task
from tests.support.waiting import SECONDS, until
from tracelake.chain.abi.decode_logs import decode_logs
from tracelake.chain.abi.events import ERC20_TRANSFER
from tracelake.operators.api.context import Resources
from tracelake.store.migrate import Database
from tracelake_devchain.expected_rows import truth_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio

WORK = """
name: work
defaults: {runtime: ecs_platform, max_attempts: 1}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: by_sql
    operator: sql
    config:
      mode: full
      query: |
        SELECT n.id, '{braces} and }' AS said FROM numbers n
         WHERE n.id IN (SELECT max(id) FROM numbers) UNION ALL SELECT -1, '{}'
    inputs: [{from: {job: go}}, {from: {dataset: numbers}, trigger: false}]
  - name: by_python
    operator: python
    config: {function: "tests.support.spark.functions:held", args: {folder: LET_GO}, mode: full, files: 2}
    inputs: [{from: {job: go}}, {from: {dataset: numbers}, trigger: false}]
  - name: by_quality
    operator: quality
    config:
      checks:
        - {kind: continuous, column: id, input: numbers}
        - {kind: sql, query: SELECT * FROM numbers WHERE id < 0}
    inputs: [{from: {job: go}}, {from: {dataset: numbers}, trigger: false}]
  - name: of_nothing
    operator: sql
    config: {mode: full, query: "SELECT CAST(concat('no number ', id) AS INT) AS id FROM numbers"}
    inputs: [{from: {job: go}}, {from: {dataset: numbers}, trigger: false}]
publish:
  by_sql: {job: by_sql}
  by_python: {job: by_python}
  by_quality: {job: by_quality}
  of_nothing: {job: of_nothing}
"""
PAST = """
name: past
defaults: {runtime: ecs_platform, max_attempts: 1}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: upper, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: ingest
    operator: cryo_ingest
    config: {rpc_pool: dev, chunk: 20, tables: [logs]}
    inputs: [{from: {job: ask}}]
    outputs: [logs]
  - name: again
    operator: cryo_ingest
    config: {rpc_pool: dev, tables: [logs]}
    inputs: [{from: {job: upper}}]
    outputs: [logs]
  - name: decode
    operator: evm_decode
    config: {abi: erc20, events: [transfer], files: 2}
    inputs: [{from: {job: ingest}, name: past_logs}, {from: {job: again}, name: recent_logs}]
"""


@pytest.fixture
def devchain() -> Iterator[Devchain]:
    with running(blocks=60, finality=16) as chain:
        yield chain


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_operators_do_the_same_through_spark_connect(
    connect: ConnectServer, devchain: Devchain, clone: Callable[[Database], str], tmp_path: Path
) -> None:
    (tmp_path / "files" / "in").mkdir(parents=True)
    (tmp_path / "files" / "in" / "a.csv").write_text("id\n" + "".join(f"{item}\n" for item in range(50)))
    far = {
        "TRACE_SPARK__REMOTE": connect.address,
        "TRACE_RPC_POOLS__DEV__ENDPOINTS": devchain.node("a"),
        "TRACE_RPC_POOLS__DEV__CHAIN_ID": str(devchain.chain_id),
    }
    queue_db, data_db = clone("queue"), clone("data")
    async with walking(clone("state"), queue_db, tmp_path) as walk:
        system = OperatorSystem(walk, cast("SparkSession", None), Resources(), tmp_path)  # Spark is elsewhere
        async with trace_worker(walk, tmp_path, (queue_db, data_db), far) as pid:
            await files_sql_and_functions(system, tmp_path)
            assert [process for process in family_of(pid) if process.name() == "java"] == []
            await a_canceled_task_ends_its_jobs(system, tmp_path)
            await a_range_is_ingested_and_decoded(ChainSystem(walk, data_db, None, devchain))
            await the_tip_is_followed_and_compacted(ChainSystem(walk, data_db, None, devchain))


async def files_sql_and_functions(system: OperatorSystem, folder: Path) -> None:
    (folder / "let_go").mkdir()
    (folder / "let_go" / "go").touch()
    await system.deploy(LOAD)
    await system.trigger("load", "go")
    states = await system.settled()
    assert states["numbers"] == ["Completed"], await system.error("numbers")
    await system.deploy(WORK.replace("LET_GO", str(folder / "let_go")))
    await system.trigger("work", "go")
    states = await system.settled()
    for job in ("by_sql", "by_python", "by_quality"):
        assert states[job] == ["Completed"], await system.error(job)
    assert await system.rows("by_sql") == [{"id": -1, "said": "{}"}, {"id": 49, "said": "{braces} and }"}]
    tens = await system.rows("by_python")
    assert [row["ten"] for row in tens] == [10 * number for number in range(50)]
    assert {Path(row["package"]).parts[-3] for row in tens} == {"tracelake.zip"}, "the package was sent along"
    assert states["of_nothing"] == ["Failed"]
    assert "no number " in await system.error("of_nothing")


async def a_canceled_task_ends_its_jobs(system: OperatorSystem, folder: Path) -> None:
    marks = folder / "marks"
    marks.mkdir()
    await system.deploy(HOLD.replace("FOLDER", str(marks)))
    await system.trigger("hold", "go")
    async with asyncio.timeout(SECONDS):
        await until(lambda: list(marks.glob("held.*")), "rows are held in a Python worker")
        (row,) = await system.fetch("SELECT id FROM tasks WHERE status = 'Running'")
        await cancel_task(system.walk.control, system.walk.org.id, row["id"], "a test")
        await until(
            lambda: not any(psutil.pid_exists(int(mark.name.split(".")[2])) for mark in marks.glob("held.*")),
            "the Python workers have ended",
        )
    assert await system.partitions("held") == []


async def a_range_is_ingested_and_decoded(system: ChainSystem) -> None:
    """Decoding counts what it leaves out while it reads, and here two inputs share blocks."""
    await system.deploy(PAST)
    await system.trigger("past", "upper", 20, 39)
    await system.settled()
    await system.trigger("past", "ask", 0, 39)
    await system.settled()
    assert [said for said in await system.failures() if not said.startswith("of_nothing")] == []
    logs, transfers = await system.cold("past", "ingest"), await system.cold("past", "decode")
    assert logs is not None
    assert transfers is not None
    assert rows_of(logs, "logs") == truth(system.devchain, "logs", 0, 39)
    true = decode_logs(truth_table(system.devchain.chain(), "logs", 0, 39), ERC20_TRANSFER).table
    assert rows_of(transfers, "logs") == rows_of(true, "logs")
    said = await system.walk.control.pool.fetch(
        "SELECT t.progress ->> 'message' AS it FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'decode'"
    )
    assert [row["it"] for row in said if not row["it"].startswith("left out: ")] == []


async def the_tip_is_followed_and_compacted(system: ChainSystem) -> None:
    """Compaction reads the hot tables by the Postgres source, in the server's Python workers."""
    await system.deploy(FOLLOW)
    version = await system.version("live", "follow")
    await system.until_followed(version)
    system.devchain.reorg(3)
    system.devchain.mine(30)
    await system.until_followed(version)
    await system.settled()
    await system.until_equal(lambda: equal(system))
    assert [said for said in await system.failures() if not said.startswith("of_nothing")] == []
    assert await system.cold("live", "compact") is not None
