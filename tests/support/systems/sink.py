"""Buffered datasets as they run: a Dispatcher with its listeners, producers at the task API, a sink, real Postgres.

A producer claims a task and publishes what it wrote, as an untrusted one would: with its token and nothing else.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.rows import dict_row

from tests.support.dispatcher.control import Org
from tests.support.systems.walk import OnDispatcher, walking
from tests.support.verbs import trigger
from tracelake.data.buffered.stage_batches import BatchLimits
from tracelake.dispatcher.dags.deploy import Deployed
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.access.storage_locations import buffer_folder
from tracelake.sink.drain import Sink
from tracelake.sink.write import Writer
from tracelake.wire.task.buffers import BufferPublishRequest
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.task.outputs import CompleteRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMITS = BatchLimits(batch_bytes=1024 * 1024, line_bytes=4096, unpacked_bytes=4 * 1024 * 1024)
ALERTS = """
name: watch
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: detect
    operator: pull
    runtime: ecs_platform
    inputs: [{from: {job: ask}}]
    outputs: [{dataset: alert_events}]
  - name: after
    operator: noop
    runtime: dispatcher
    inputs: [{from: {dataset: alert_events}}]
publish:
  alert_events:
    storage: postgres
    write_mode: buffered
    columns:
      dedupe_key: text
      severity: {type: text, nullable: false}
      amount: uint256
      block_number: bigint
      seen_at: timestamp
      payload: json
    unique_key: [dedupe_key]
    indexes: [[block_number, severity]]
"""


def alert(key: str, **more: Any) -> dict[str, Any]:
    return {"dedupe_key": key, "severity": "high", **more}


def lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


@dataclass(frozen=True)
class Producer:
    """One attempt of a task that writes into `alert_events`."""

    system: SinkSystem
    claimed: Claimed

    @property
    def dataset(self) -> UUID:
        return self.claimed.task.outputs[0].dataset_uuid

    @property
    def folder(self) -> Folder:
        task = self.claimed.task
        return buffer_folder("trace-scratch", self.dataset, task.task_id, task.attempt)

    def put(self, body: bytes, name: str = "batch.jsonl") -> ObjectName:
        where = self.folder.object(name)
        self.system.walk.control.objects.put(where, body)
        return where

    async def publish(self, body: bytes | Sequence[Mapping[str, Any]], name: str | None = None, **more: Any) -> UUID:
        """Write a batch and publish it."""
        put = self.put(body if isinstance(body, bytes) else lines(body), name or f"{uuid4().hex}.jsonl")
        return await self.hand_over(str(put), **more)

    async def hand_over(self, uri: str, **more: Any) -> UUID:
        fence: dict[str, Any] = {
            "task_id": self.claimed.task.task_id,
            "attempt": self.claimed.attempt,
            "lease_token": self.claimed.lease_token,
        }
        asked = BufferPublishRequest(**fence, batch_uri=uri, **{"dataset_uuid": self.dataset, **more})
        return (await self.system.walk.tasks.publish_buffer(self.claimed.capability_token, asked)).publish_id

    async def complete(self, status: Any = "Completed", **more: Any) -> None:
        fence: dict[str, Any] = {
            "task_id": self.claimed.task.task_id,
            "attempt": self.claimed.attempt,
            "lease_token": self.claimed.lease_token,
        }
        await self.system.walk.tasks.complete(
            self.claimed.capability_token, CompleteRequest(**fence, status=status, **more)
        )


@dataclass(frozen=True)
class SinkSystem(OnDispatcher):
    spark: SparkSession
    data_dsn: str
    folder: Path

    async def deploy(self, text: str = ALERTS, org: Org | None = None) -> Deployed:
        return await super().deploy(text, org)

    async def producer(self, org: Org | None = None) -> Producer:
        """A claimed task of `detect`."""
        await self.trigger("watch", "ask", org=org, cursor=uuid4().int >> 70)
        return Producer(self, await self.claim_task("detect", org))

    async def producers(self, count: int, jobs: Sequence[str]) -> list[Producer]:
        """So many claimed tasks of each of these jobs, each with its own token and folder."""
        for cursor in range(count):
            await self.trigger("watch", "ask", cursor=cursor)
        return await self.claim_all(count * len(jobs), jobs)

    async def claim_all(self, count: int, jobs: Sequence[str]) -> list[Producer]:
        """Claim the tasks of these jobs once there are so many."""
        waiting = (
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id"
            " WHERE t.status = 'Queued' AND t.woken_at IS NOT NULL AND j.name = ANY ($1) ORDER BY t.id"
        )
        await self.until(f"SELECT count(*) = $2 FROM ({waiting}) AS w", list(jobs), count)  # noqa: S608
        found = [row["id"] for row in await self.fetch(waiting, list(jobs))]
        answers = [(await self.walk.dispatcher.claim_batch([task], "a producer"))[0] for task in found]
        return [Producer(self, answer) for answer in answers if isinstance(answer, Claimed)]

    async def claim(self) -> Producer:
        return Producer(self, await self.claim_task("detect"))

    def writer(self, limits: BatchLimits = LIMITS) -> Writer:
        return Writer(lambda: self.spark, self.walk.control.objects, self.data_dsn, limits)

    @asynccontextmanager
    async def sinking(self, writer: Writer | None = None, **more: Any) -> AsyncIterator[Sink]:
        writer = writer or self.writer()
        stop = asyncio.Event()
        sink = Sink(self.walk.control.queue, "buffer", self.walk.dispatcher, writer, **more)
        task = asyncio.create_task(sink.drain(stop))
        try:
            yield sink
        finally:
            stop.set()
            await task
            writer.close()

    async def settled(self) -> dict[str, int]:
        """Wait until no batch and no outbox entry is pending; return the number of batches by status."""
        await self.until(
            "SELECT NOT EXISTS (SELECT FROM buffer_publishes WHERE status = 'Accepted')"
            " AND NOT EXISTS (SELECT FROM outbox WHERE status IN ('Pending', 'Processing'))"
        )
        rows = await self.fetch("SELECT status::text, count(*) AS n FROM buffer_publishes GROUP BY 1")
        return {row["status"]: row["n"] for row in rows}

    async def death(self, publish: UUID) -> tuple[int | None, str]:
        """Line and reason of a dead batch."""
        (row,) = await self.fetch(
            "SELECT status::text, error_line, error_message FROM buffer_publishes WHERE id = $1", publish
        )
        assert row["status"] == "Dead", dict(row)
        return row["error_line"], row["error_message"]

    def data(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self.data_dsn, row_factory=dict_row) as connection:
            return connection.execute(sql.encode(), values).fetchall()

    async def rows(self, org: Org | None = None, order: str = "dedupe_key") -> list[dict[str, Any]]:
        """The table of `alert_events`."""
        find = "SELECT dataset_version FROM buffered_datasets WHERE org_id = $1 AND name = 'alert_events'"
        version = await self.walk.control.pool.fetchval(find, (org or self.walk.org).id)
        return self.data(f"SELECT * FROM buffered.b_{version.hex} ORDER BY {order}")  # noqa: S608


@asynccontextmanager
async def sink_system(
    state_db: str, queue_db: str, data_db: str, tmp_path: Path, spark: SparkSession
) -> AsyncIterator[SinkSystem]:
    async with walking(state_db, queue_db, tmp_path) as walk:
        yield SinkSystem(walk, spark, data_db, tmp_path)


async def trigger_range(system: SinkSystem, job: str, start: int, end: int) -> None:
    await trigger(system.walk.control, system.walk.org.id, "watch", job, start=start, end=end, request_id=uuid4())


def parquet(table: pa.Table, **more: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **{"compression": "zstd", **more})
    return out.getvalue()
