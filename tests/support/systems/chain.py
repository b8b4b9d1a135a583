"""What tests of chain operators do: deploy, trigger, wait until nothing moves, and compare datasets with the chain."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.rows import dict_row

from tests.support.chain.devchain import Devchain
from tests.support.chain.proxies import CountingNode
from tests.support.systems.walk import OnDispatcher
from tests.support.waiting import until
from tracelake.chain.nodes.rpc_pool import RpcPool
from tracelake.domain.access.object_names import Folder
from tracelake.operators.api.context import Resources
from tracelake.operators.helpers.chain_tables import KEYS
from tracelake.worker.run_task import Runner
from tracelake.worker.wrapper import Wrapper
from tracelake_devchain.chain import Chain
from tracelake_devchain.expected_rows import truth_table
from tracelake_devchain.journal import rebuild


@dataclass(frozen=True)
class ChainSystem(OnDispatcher):
    data_dsn: str
    spark: Any
    devchain: Devchain
    queue_dsn: str = ""
    folder: Path = Path()

    def worker(self, name: str = "one", *nodes: str, **pool: Any) -> Wrapper:
        return self.worker_on(self.devchain.pool(*nodes, **pool), name)

    def worker_on(self, pool: RpcPool, name: str = "one") -> Wrapper:
        """Whose jobs ask these nodes."""
        runner = Runner(self.walk.control.objects, Resources(self.data_dsn, {"dev": pool}), self.spark)
        return replace(self.walk.worker(name), runner=runner)

    def pool(self, *nodes: CountingNode) -> RpcPool:
        """Of nodes that are counted."""
        endpoints = tuple(node.endpoint for node in nodes)
        return RpcPool(f"watched {uuid4()}", self.devchain.chain_id, endpoints)

    async def settled(self) -> None:
        """Until every outbox entry is published, and nothing runs but sources."""

        async def nothing_left() -> bool:
            return not await self.moving()

        await until(nothing_left, "every outbox entry is published and nothing runs but sources")

    async def moving(self) -> int:
        """How many outbox entries are pending, and tasks queued, running or to be retried, sources apart."""
        count: int = await self.walk.control.pool.fetchval(
            "SELECT (SELECT count(*) FROM outbox WHERE status IN ('Pending', 'Processing'))"
            " + (SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id"
            " WHERE j.source ->> 'kind' IS DISTINCT FROM 'always_on'"
            " AND (t.status IN ('Queued', 'Running') OR t.next_retry_at IS NOT NULL))"
        )
        return count

    async def failures(self) -> list[str]:
        rows = await self.walk.control.pool.fetch(
            "SELECT j.name || ': ' || t.error_message AS message FROM tasks t JOIN jobs j ON j.id = t.job_id"
            " WHERE t.status = 'Failed'"
        )
        return [row["message"] for row in rows]

    async def cold(self, dag: str, job: str, output: int = 0) -> pa.Table | None:
        """Every current row, of all generations the latest; read without Spark and without any of our readers."""
        rows = await self.walk.control.pool.fetch(
            "SELECT p.location, f ->> 'name' AS name, p.valid_from, lower(p.block_range) AS start,"
            " upper(p.block_range) AS stop"
            " FROM partition_versions p JOIN datasets d ON d.id = p.dataset_uuid, jsonb_array_elements(p.files) f"
            " WHERE d.producer_dag_name = $1 AND d.producer_job_name = $2"
            " AND d.producer_output_index = $3 AND p.valid_to IS NULL"
            " ORDER BY p.valid_from, lower(p.block_range), name",
            dag,
            job,
            output,
        )
        ranged = [row for row in rows if row["start"] is not None]
        latest = {number: row["valid_from"] for row in ranged for number in range(row["start"], row["stop"])}
        objects, found = self.walk.control.objects, []
        for row in rows:
            table = pq.read_table(pa.BufferReader(objects.get(Folder.parse(row["location"]).object(row["name"]))))
            if row["start"] is not None and "block_number" in table.column_names:
                counts = [latest[number] == row["valid_from"] for number in table["block_number"].to_pylist()]
                table = table.filter(pa.array(counts, pa.bool_()))
            found.append(table)
        return pa.concat_tables(found) if found else None

    async def version(self, dag: str, job: str, output: int = 0) -> UUID:
        found: UUID = await self.walk.control.pool.fetchval(
            "SELECT v.dataset_version FROM dag_current_versions c"
            " JOIN dag_version_datasets v ON v.dag_version_id = c.dag_version_id"
            " JOIN datasets d ON d.id = v.dataset_uuid"
            " WHERE c.dag_name = $1 AND d.producer_job_name = $2 AND d.producer_output_index = $3",
            dag,
            job,
            output,
        )
        return found

    def hot_marks(self, version: UUID) -> dict[int, bytes]:
        with psycopg.connect(self.data_dsn) as connection:
            rows = connection.execute(
                "SELECT number, hash FROM trace_meta.hot_blocks WHERE dataset_version = %s", (version,)
            ).fetchall()
        return {number: bytes(block_hash) for number, block_hash in rows}

    async def current_rows(self, dag: str, hot: str, cold: str, output: int, table: str) -> list[dict[str, Any]]:
        """By the rule alone: hot where a mark is newer than the cold commit, cold elsewhere."""
        version = await self.version(dag, hot, output)
        commit = await self.walk.control.pool.fetchval(
            "SELECT coalesce(max(h.last_commit), 0) FROM dataset_heads h JOIN datasets d ON d.id = h.dataset_uuid"
            " WHERE d.producer_dag_name = $1 AND d.producer_job_name = $2 AND d.producer_output_index = $3",
            dag,
            cold,
            output,
        )
        with psycopg.connect(self.data_dsn, row_factory=dict_row) as connection:
            marks = connection.execute(
                "SELECT number FROM trace_meta.hot_blocks WHERE dataset_version = %s"
                " AND (compacted_in IS NULL OR compacted_in > %s)",
                (version, commit),
            ).fetchall()
            rows = connection.execute(f"SELECT * FROM hot.d_{version.hex}").fetchall()  # noqa: S608
        is_hot = {mark["number"] for mark in marks}
        from_hot = [row for row in rows if row["block_number"] in is_hot]
        files = await self.cold(dag, cold, output)
        from_cold = [row for row in (files.to_pylist() if files else []) if row["block_number"] not in is_hot]
        return sorted([*from_hot, *from_cold], key=lambda row: tuple(row[key] for key in KEYS[table]))

    async def until_followed(self, version: UUID) -> None:
        """Until the hot table's newest block is the chain's."""

        def followed() -> bool:
            chain, marks = self.devchain.describe(), self.hot_marks(version)
            return bool(marks) and max(marks) == chain["head"] and marks[max(marks)].hex() == chain["head_hash"][2:]

        await until(followed, "the newest block of the hot table is the head of the chain", every=0.05)

    async def until_equal(self, check: Callable[[], Awaitable[None]]) -> None:
        """Until `check` passes: the last event may not have created its tasks yet when nothing seems to run."""

        async def passes() -> bool:
            await self.settled()
            await check()
            return True

        await until(passes, "the datasets are equal to the chain", every=0.5, ignoring=(AssertionError,))


def truth(devchain: Devchain, table: str, start: int, end: int) -> list[dict[str, Any]]:
    chain = _chain(json.dumps(devchain.describe())) if isinstance(devchain, Devchain) else devchain.chain()
    return rows_of(truth_table(chain, table, start, end), table)


@lru_cache(maxsize=2)
def _chain(described: str) -> Chain:
    """Made once for all tables: sealing its blocks takes longer than comparing them."""
    return rebuild(json.loads(described))


def rows_of(table: pa.Table, name: str) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: tuple(row[key] for key in KEYS[name]))


FOLLOW = """
name: live
defaults: {runtime: ecs_platform, retry: {backoff: 1s, max_backoff: 1s}}
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    config: {rpc_pool: dev, poll_seconds: 0.05, batch: 25}
    outputs: [blocks, transactions, logs, final]
    heartbeat_interval_seconds: 1s
  - name: gather
    operator: range_aggregator
    runtime: dispatcher
    config: {size: 20}
    inputs: [{from: {job: follow, output: final}}]
  - name: compact
    operator: parquet_compact
    config: {grace_seconds: 0}
    inputs:
      - {from: {job: gather}}
      - {from: {job: follow, output: blocks}, trigger: false}
      - {from: {job: follow, output: transactions}, trigger: false}
      - {from: {job: follow, output: logs}, trigger: false}
    outputs: [blocks, transactions, logs]
"""


async def equal(system: ChainSystem) -> None:
    """Hot and cold of every table, read apart and joined at the boundary between them, are the chain's rows."""
    head = system.devchain.describe()["head"]
    for output, table in enumerate(("blocks", "transactions", "logs")):
        found = await system.current_rows("live", "follow", "compact", output, table)
        assert found == truth(system.devchain, table, 0, head), table


BACKFILL = """
name: backfill
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: cut, operator: range_splitter, runtime: dispatcher, config: {chunk: 20}, inputs: [{from: {job: ask}}]}
  - name: ingest
    operator: cryo_ingest
    runtime: ecs_platform
    config: {rpc_pool: dev, chunk: 7}
    inputs: [{from: {job: cut}}]
    outputs: [blocks, transactions, logs]
    retry: {backoff: 1s, max_backoff: 1s}
"""
