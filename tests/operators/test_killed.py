"""kill -9 of a worker in the middle of every operator, and of the next at its end: only the third attempt commits.

Files of the killed ones are never visible, and are deleted. `block_follower`, and `parquet_compact` at each
crash point, are killed in `tests/chain_walk/test_storm.py`; sandboxes in `tests/runner/test_killed.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.support.chain.devchain import Devchain, running
from tests.support.chain.token_logs import write_logs
from tests.support.dispatcher.control import PULL
from tests.support.operators import registered
from tests.support.programs.blocked_worker import blocked_worker, event_status, files_of, held_in, swept
from tests.support.systems.chain import ChainSystem, rows_of, truth
from tests.support.systems.operators import OperatorSystem, operator
from tests.support.systems.sink import SinkSystem
from tests.support.systems.sink_alerts import STANDARD, alerts_of, event, publish
from tests.support.systems.walk import working
from tests.support.verbs import pause_job
from tests.support.waiting import SECONDS
from tracelake.dispatcher.maintenance.delete_applied_batches import DeleteAppliedBatches
from tracelake.store.identity import find_user

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]

EVENTS = 1500
"""More than `alert_route` stores at once."""
FOLLOW = """
name: live
defaults: {runtime: ecs_platform}
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    config: {rpc_pool: dev, tables: [blocks, logs]}
    outputs: [blocks, logs]
    heartbeat_interval_seconds: 1s
publish: {hot_blocks: {job: follow, output: blocks}, hot_logs: {job: follow, output: logs}}
"""
ROWS = """
name: rows
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: numbers, operator: numbers, inputs: [{from: {job: ask}}]}
  - {name: logs, operator: some_logs, inputs: [{from: {job: ask}}]}
  - name: kept
    operator: sql
    config: {query: SELECT block_number AS number FROM numbers}
    inputs: [{from: {job: numbers}}]
    outputs: [{dataset: kept}]
publish:
  numbers: {job: numbers}
  logs: {job: logs}
  kept: {storage: postgres, write_mode: buffered, columns: {number: bigint}, unique_key: [number]}
"""
WATCH = f"""
name: watch
jobs:
  - {{name: ask, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - name: detect
    operator: pull
    runtime: ecs_udf
    inputs: [{{from: {{job: ask}}}}]
    outputs: [{{dataset: alert_events}}]
  - name: by_route
    operator: alert_route
    runtime: ecs_platform
    inputs: [{{from: {{dataset: alert_events}}}}]
{STANDARD}"""
DAG = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: by_sql
    operator: sql
    config: {query: SELECT block_number FROM numbers, files: 2}
    inputs: BOTH
  - name: by_python
    operator: python
    config: {function: "tests.support.spark.functions:doubled", args: {times: 2}, files: 2}
    inputs: BOTH
  - name: by_quality
    operator: quality
    config: {checks: [{kind: unique, columns: [number], input: kept}]}
    inputs: [{from: {job: go}}, {from: {dataset: kept}, trigger: false}]
  - name: by_files
    operator: read_files
    config: {path: in, format: csv, partition: whole}
    inputs: [{from: {job: go}}]
  - name: by_ingest
    operator: cryo_ingest
    config: {rpc_pool: dev, tables: [blocks, logs], chunk: 2}
    inputs: [{from: {job: go}}]
    outputs: [blocks, logs]
  - name: by_decode
    operator: evm_decode
    config: {abi: erc20, events: [transfer, approval]}
    inputs: [{from: {dataset: logs}}]
    outputs: [transfers, approvals]
  - name: by_compact
    operator: parquet_compact
    config: {tables: [blocks, logs], chunk: 2}
    inputs:
      - {from: {job: go}}
      - {from: {dataset: hot_blocks}, trigger: false}
      - {from: {dataset: hot_logs}, trigger: false}
    outputs: [blocks, logs]
  - name: into_table_by_sql
    operator: sql
    config:
      query: >-
        SELECT concat('s', block_number) AS id, block_number AS number FROM numbers WHERE block_number < 9
        UNION ALL SELECT concat('s', block_number), block_number FROM numbers WHERE block_number >= 9
    inputs: BOTH
    outputs: [{dataset: marks}]
  - name: into_table_by_python
    operator: python
    config: {function: "tests.support.spark.functions:marks"}
    inputs: BOTH
    outputs: [{dataset: marks}]
publish:
  by_sql: {job: by_sql}
  by_python: {job: by_python}
  by_quality: {job: by_quality}
  by_files: {job: by_files}
  ingested_blocks: {job: by_ingest, output: blocks}
  ingested_logs: {job: by_ingest, output: logs}
  transfers: {job: by_decode, output: transfers}
  approvals: {job: by_decode, output: approvals}
  compacted_blocks: {job: by_compact, output: blocks}
  compacted_logs: {job: by_compact, output: logs}
  marks: {storage: postgres, write_mode: buffered, columns: {id: text, number: bigint}, unique_key: [id]}
""".replace("BOTH", "[{from: {job: go}}, {from: {dataset: numbers}, trigger: false}]")
FILES = (
    *("by_sql", "by_python", "by_quality", "by_files", "ingested_blocks", "ingested_logs"),
    *("transfers", "approvals", "compacted_blocks", "compacted_logs"),
)
TABLES = ("into_table_by_sql", "into_table_by_python")
SEVERAL = {"by_sql", "by_python", "by_files", "by_ingest", "by_decode", "by_compact", *TABLES}
"""Jobs that write more than one file."""
RUNNING_TASKS = """
SELECT j.name, t.id FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE t.status = 'Running' AND t.attempt = $1 AND (j.name LIKE 'by_%' OR j.name LIKE 'into_%')
"""
COMMITS = """
SELECT d.name, count(*) AS commits, min(c.attempt) AS attempt
  FROM commits c JOIN datasets d ON d.id = c.dataset_uuid WHERE d.name = ANY ($1) GROUP BY 1
"""
PUBLISHED = """
SELECT count(*) AS n FROM buffer_publishes p JOIN tasks t ON t.id = p.task_id JOIN jobs j ON j.id = t.job_id
 WHERE j.name = ANY ($1)
"""
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
STOP_AT_THE_SECOND = """
CREATE FUNCTION alerts.stop_at_the_second() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF EXISTS (SELECT FROM alerts.deliveries) THEN PERFORM pg_advisory_xact_lock(1); END IF; RETURN NULL;
END $$;
CREATE TRIGGER stop_at_the_second BEFORE INSERT ON alerts.deliveries EXECUTE FUNCTION alerts.stop_at_the_second();
SELECT pg_advisory_lock(1)
"""


@pytest.fixture(scope="module")
def devchain() -> Iterator[Devchain]:
    with running(blocks=10) as chain:
        yield chain


@dataclass(frozen=True)
class KilledSystem:
    """The test systems of operators and of the sink, on one Dispatcher."""

    system: OperatorSystem
    sink: SinkSystem
    chain: ChainSystem
    killed_settings: dict[str, Any]


@pytest.fixture
async def killed(
    system: OperatorSystem, queue_db: str, data_db: str, devchain: Devchain
) -> AsyncIterator[KilledSystem]:
    resources = replace(system.resources, data_dsn=data_db, rpc_pools={"dev": devchain.pool("a")})
    pools = {"dev": {"endpoints": f"a={devchain.node('a')}", "chain_id": devchain.chain_id}}
    killed_settings = event_status(system.walk, queue_db, system.folder, data=data_db, pools=pools)
    sink = SinkSystem(system.walk, system.spark, data_db, system.folder)
    chain = ChainSystem(system.walk, data_db, system.spark, devchain)
    with registered(pull=replace(PULL, runtimes=frozenset({"ecs_udf"}))), operator("some_logs", write_logs):
        async with sink.sinking():
            yield KilledSystem(replace(system, resources=resources), sink, chain, killed_settings)


@pytest.mark.long
async def test_two_killed_workers_leave_orphan_files_and_the_third_attempt_commits(
    killed: KilledSystem,
) -> None:
    system = killed.system
    await what_is_read(killed)
    await system.deploy(DAG)
    await system.trigger("d", "go", start=0, end=4)
    left = {}
    for attempt, how in enumerate(("in the middle", "at the end"), 1):
        async with stopped_by_locks(killed, attempt), blocked_worker({**killed.killed_settings, "hold": how}):
            left[attempt] = await all_stand_still(killed, attempt)
        await nothing_is_seen(killed, attempt, left[attempt])
        await leases_end(system)
    async with working(system.worker("third")):
        await system.until("SELECT count(*) = $1 FROM tasks WHERE status = 'Completed' AND attempt = 3", len(left[1]))
        await system.settled()
    await killed.sink.settled()
    await swept(system.walk)
    await DeleteAppliedBatches(system.walk.control.pool, system.walk.control.objects, timedelta()).once()
    for attempt, tasks in left.items():
        assert [files_of(system.folder, task, attempt) for task in tasks.values()] == [[]] * len(tasks)
    await every_row_is_there_once(killed)


async def what_is_read(killed: KilledSystem) -> None:
    """Numbers and logs as files, a buffered table, hot tables, and alert events to route.

    The jobs that read them are deployed later, and catch up with what is there.
    """
    system = killed.system
    (system.folder / "files" / "in").mkdir()
    held_in(system.folder).mkdir()
    for number in range(3):
        (system.folder / "files" / "in" / f"{number}.csv").write_text(f"id\n{number * 2}\n{number * 2 + 1}\n")
    user = await find_user(system.walk.control.pool, "test|acme")
    assert user is not None
    await system.deploy(ROWS)
    await system.deploy(FOLLOW)
    async with working(system.worker()):
        await system.trigger("rows", "ask", start=0, end=19)
        await killed.chain.until_followed(await killed.chain.version("live", "follow"))
        await pause_job(system.walk.control, user, "live", "follow")
        await system.settled()
    await killed.sink.settled()
    await system.deploy(WATCH)
    alerts = await alerts_of(killed.sink, "acme")
    await publish(killed.sink, [event(alerts["whales"], f"k{number}") for number in range(EVENTS)])
    await killed.sink.settled()


@asynccontextmanager
async def stopped_by_locks(killed: KilledSystem, attempt: int) -> AsyncIterator[None]:
    """Block operators that put no file before their end in the database.

    `quality` while Spark reads, `alert_route` before its first items, the next time before the second ones.
    """
    with psycopg.connect(killed.sink.data_dsn, options="-c idle_in_transaction_session_timeout=0") as connection:
        if attempt == 1:
            kept_table = await table_of(killed, "kept")
            connection.execute(f"LOCK TABLE alerts.deliveries, {kept_table} IN ACCESS EXCLUSIVE MODE".encode())
        else:
            connection.execute(STOP_AT_THE_SECOND.encode())
            connection.commit()
        yield
        # A running statement outlives its session; a finished one may be seen too.
        connection.execute(WAITING.replace("SELECT pid", "SELECT pg_terminate_backend(pid, 10000)").encode())


async def all_stand_still(killed: KilledSystem, attempt: int) -> dict[str, UUID]:
    """Return the tasks by job, when all of them are blocked."""
    locked = {1: {"by_quality", "by_route"}, 2: {"by_route"}}[attempt]
    async with asyncio.timeout(SECONDS):
        while True:
            tasks = {row["name"]: row["id"] for row in await killed.system.fetch(RUNNING_TASKS, attempt)}
            held = {path.name for path in held_in(killed.system.folder).iterdir()}
            moving = {job for job, task in tasks.items() if f"{task}.{attempt}" not in held}
            if len(tasks) == len(SEVERAL) + 2 and moving == locked and len(killed.sink.data(WAITING)) >= len(locked):
                return tasks
            await asyncio.sleep(0.1)


async def nothing_is_seen(killed: KilledSystem, attempt: int, tasks: dict[str, UUID]) -> None:
    system = killed.system
    there = {job: len(files_of(system.folder, task, attempt)) for job, task in tasks.items()}
    if attempt == 1:
        assert there == {**dict.fromkeys(SEVERAL, 1), "by_quality": 0, "by_route": 0}, "one file of several"
    else:
        assert all(there[job] > 1 for job in SEVERAL), there
    assert await system.fetch(COMMITS, FILES) == []
    assert [await system.partitions(name) for name in FILES] == [[]] * len(FILES)
    await killed.sink.settled()
    (published,) = await system.fetch(PUBLISHED, TABLES)
    assert published["n"] == {1: 0, 2: len(TABLES)}[attempt], "what was published counts, whatever becomes of it"
    assert len(killed.sink.data("SELECT FROM alerts.deliveries")) == {1: 0, 2: 2 * 1000}[attempt]


async def leases_end(system: OperatorSystem) -> None:
    pool = system.walk.control.pool
    await pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
    system.walk.control.after_commit.leases.notify()
    await system.until("SELECT NOT EXISTS (SELECT FROM tasks WHERE status = 'Running')")
    await pool.execute("UPDATE tasks SET next_retry_at = now() WHERE status = 'Failed'")
    system.walk.control.after_commit.leases.notify()


async def every_row_is_there_once(killed: KilledSystem) -> None:
    system = killed.system
    commits = {row["name"]: (row["commits"], row["attempt"]) for row in await system.fetch(COMMITS, FILES)}
    assert commits == dict.fromkeys(FILES, (1, 3)), "one each, and it is the third attempt's"
    for name in FILES:
        assert {partition["location"].rpartition("/")[0][-2:] for partition in await system.partitions(name)} == {"/3"}
    assert await system.rows("by_sql") == [{"block_number": n} for n in range(20)]
    assert await system.rows("by_python") == [{"block_number": n, "more": n * 20} for n in range(20)]
    assert [row["passed"] for row in await system.rows("by_quality")] == [True]
    assert await system.rows("by_files") == [{"id": n} for n in range(6)]
    assert [row["value"] for row in await system.rows("transfers")] == ["7"]
    assert len(await system.rows("approvals")) == 1
    for table in ("blocks", "logs"):
        for made in ("ingested", "compacted"):
            found = rows_of(await system.table(f"{made}_{table}"), table)
            assert found == truth(killed.chain.devchain, table, 0, 4), (made, table)
    marks = killed.sink.data(f"SELECT id, number FROM {await table_of(killed, 'marks')}")  # noqa: S608
    expected = {(f"{who}{number}", number) for who in "sp" for number in range(20)}
    assert len(marks) == len(expected)
    assert {(mark["id"], mark["number"]) for mark in marks} == expected
    items = killed.sink.data("SELECT dedupe_key, channel FROM alerts.deliveries")
    assert len(items) == len({(item["dedupe_key"], item["channel"]) for item in items}) == 2 * EVENTS


async def table_of(killed: KilledSystem, name: str) -> str:
    find = "SELECT dataset_version FROM buffered_datasets WHERE name = $1"
    version: UUID = await killed.system.walk.control.pool.fetchval(find, name)
    return f"buffered.b_{version.hex}"
