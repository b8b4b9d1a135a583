"""Compactions step by step, claimed, run and reported in any order: what is marked cold is in a file, as it was."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from tests.support.spark.hot_tables import chain
from tests.support.systems.chain import ChainSystem
from tests.support.verbs import invalidate
from tracelake.chain.schemas import SCHEMAS
from tracelake.data.hot.tables import HotTable, ensure
from tracelake.data.hot.writer import rewrite
from tracelake.errors import Conflict
from tracelake.operators.helpers.chain_tables import KEYS
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.task.outputs import CompleteRequest
from tracelake.worker.run_task import Finished
from tracelake.worker.task_api import WorkerTaskApi
from tracelake_devchain.expected_rows import truth_table
from tracelake_devchain.journal import rebuild

pytestmark = pytest.mark.anyio
BLOCKS = 20
DAG = """
name: live
defaults: {runtime: ecs_platform}
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    config: {rpc_pool: dev, tables: [blocks]}
    outputs: [blocks]
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: compact
    operator: parquet_compact
    config: {tables: [blocks], grace_seconds: 0}
    inputs: [{from: {job: ask}}, {from: {job: follow, output: blocks}, trigger: false}]
    outputs: [blocks]
publish:
  asked: {job: ask}
"""


@dataclass
class Steps:
    """A hot table written by the test, and compactions of it, each as far as the test lets it go."""

    system: ChainSystem
    table: HotTable
    rows: list[dict[str, Any]]

    async def claimed(self, job: str = "compact") -> Claimed:
        """The task of this job that no worker has claimed."""
        await self.system.walk.until_outbox_is_empty()
        task: UUID = await self.system.walk.control.pool.fetchval(
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 AND t.status = 'Queued'",
            job,
        )
        answer = (await self.system.walk.dispatcher.claim_batch([task], "steps"))[0]
        assert isinstance(answer, Claimed), answer
        return answer

    async def invalidated(self, start: int, end: int) -> Claimed:
        org = self.system.walk.org
        await invalidate(
            self.system.walk.control,
            org.id,
            org.user,
            "asked",
            start=start,
            end=end,
            reason="a test",
            request_id=uuid4(),
        )
        return await self.claimed()

    async def triggered(self, start: int, end: int, *, job: str = "compact") -> Claimed:
        await self.system.trigger("live", "ask", start, end)
        return await self.claimed(job)

    async def run(self, claimed: Claimed) -> Finished:
        return await asyncio.to_thread(
            self.system.worker().runner.run, claimed, WorkerTaskApi(claimed, self.system.walk.tasks)
        )

    async def report(self, claimed: Claimed, finished: Finished) -> None:
        assert finished.request.status == "Completed", finished.request.error_message
        answer = await self.system.walk.tasks.complete(claimed.capability_token, finished.request)
        assert finished.after_commit is not None
        await asyncio.to_thread(finished.after_commit, answer.commits or {})

    async def compact(self, claimed: Claimed) -> None:
        await self.report(claimed, await self.run(claimed))

    async def tried_again(self, claimed: Claimed) -> Claimed:
        fence: dict[str, Any] = {
            "task_id": claimed.task.task_id,
            "attempt": claimed.attempt,
            "lease_token": claimed.lease_token,
        }
        failed = CompleteRequest(**fence, status="Failed", error_message="refused", retryable=True)
        await self.system.walk.tasks.complete(claimed.capability_token, failed)
        await self.system.walk.control.pool.execute("UPDATE tasks SET next_retry_at = now() WHERE status = 'Failed'")
        await self.system.walk.until("compact", ["Completed", "Queued"])
        return await self.claimed()

    def write_again(self, number: int) -> None:
        """The block with other contents, as a reorg would leave it."""
        self.rows[number]["gas_used"] += 1
        with psycopg.connect(self.system.data_dsn, autocommit=True) as connection:
            block = chain(0, BLOCKS)[number : number + 1]
            rewrite(connection, {self.table: pa.Table.from_pylist([self.rows[number]], SCHEMAS["blocks"])}, block)

    async def current_rows(self) -> list[dict[str, Any]]:
        return await self.system.current_rows("live", "follow", "compact", 0, "blocks")


async def stepping(system: ChainSystem, text: str = DAG) -> Steps:
    await system.deploy(text)
    dataset = await system.walk.control.pool.fetchval("SELECT id FROM datasets WHERE producer_job_name = 'follow'")
    version = await system.version("live", "follow")
    table = HotTable(dataset, version, system.walk.org.id, SCHEMAS["blocks"], KEYS["blocks"])
    rows = truth_table(rebuild(system.devchain.describe()), "blocks", 0, BLOCKS - 1)
    with psycopg.connect(system.data_dsn, autocommit=True) as connection:
        ensure(connection, table)
        rewrite(connection, {table: rows}, chain(0, BLOCKS), replace_from=0)
    return Steps(system, table, rows.to_pylist())


async def test_a_range_whose_files_were_outdated_is_not_marked_cold(bare_system: ChainSystem) -> None:
    steps = await stepping(bare_system)
    for start in (0, 10):
        await steps.compact(await steps.triggered(start, start + 9))
    both = await steps.invalidated(0, 19)
    steps.write_again(3)
    await steps.compact(await steps.invalidated(0, 9))  # claimed later, so it is the newer of the two
    steps.write_again(3)
    await steps.compact(both)  # its 0-9 is not committed, only its 10-19
    assert await steps.current_rows() == steps.rows
    await steps.compact(await steps.invalidated(0, 19))
    assert await steps.current_rows() == steps.rows


async def test_a_compaction_that_read_before_another_one_committed_is_refused_and_made_again(
    bare_system: ChainSystem,
) -> None:
    steps = await stepping(bare_system)
    early = await steps.triggered(0, 9)
    late = await steps.invalidated(0, 9)
    old = await steps.run(late)  # claimed later, and has read earlier
    steps.write_again(3)
    await steps.compact(early)  # which commits, marks and sweeps
    assert min(bare_system.hot_marks(steps.table.dataset_version)) == 10
    with pytest.raises(Conflict, match="0-9 was committed while this was made"):
        await steps.report(late, old)
    assert await steps.current_rows() == steps.rows
    await steps.compact(await steps.tried_again(late))
    assert await steps.current_rows() == steps.rows


async def test_rows_that_shall_stay_stay_and_are_not_read_twice(bare_system: ChainSystem) -> None:
    steps = await stepping(
        bare_system, DAG.replace("grace_seconds: 0", "delete_after_compact: false, grace_seconds: 0")
    )
    for start in (0, 10):
        await steps.compact(await steps.triggered(start, start + 9))
    assert sorted(bare_system.hot_marks(steps.table.dataset_version)) == list(range(BLOCKS))
    with psycopg.connect(bare_system.data_dsn) as connection:
        remaining = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(steps.table.identifier)).fetchone()
        hot = connection.execute("SELECT count(*) FROM trace_meta.hot_blocks WHERE compacted_in IS NULL").fetchone()
    assert (remaining, hot) == ((BLOCKS,), (0,)), "all are there, and all are marked cold"
    assert await steps.current_rows() == steps.rows
    steps.write_again(3)
    assert await steps.current_rows() == steps.rows
    await steps.compact(await steps.invalidated(0, 9))
    assert await steps.current_rows() == steps.rows


async def test_a_hot_input_that_holds_another_table_is_refused_by_what_its_rows_are_known_by(
    bare_system: ChainSystem,
) -> None:
    steps = await stepping(
        bare_system,
        DAG.replace("[blocks], grace", "[logs], grace").replace("outputs: [blocks]\npub", "outputs: [logs]\npub"),
    )
    finished = await steps.run(await steps.triggered(0, 9))
    assert finished.request.status == "Failed"
    assert not finished.request.retryable
    assert "the hot input for table logs holds rows known by block_number" in str(finished.request.error_message)


async def test_a_hot_table_is_compacted_into_one_dataset_and_under_another_job_name_refused(
    bare_system: ChainSystem,
) -> None:
    steps = await stepping(bare_system)
    await steps.compact(await steps.triggered(0, 9))
    await bare_system.deploy(DAG.replace("name: compact", "name: squeeze"))
    finished = await steps.run(await steps.triggered(10, 19, job="squeeze"))
    assert finished.request.status == "Failed"
    assert "is compacted into another dataset" in str(finished.request.error_message)
    assert await steps.current_rows() == steps.rows
