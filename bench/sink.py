"""Rows through the sink: `python -m bench.sink [--size ROWS]`.

Batches of up to 16 MiB of JSON lines are published through a Dispatcher, and a sink with a warm Spark session drains
them. The share is of what the same rows take by hand in the same run: one COPY of ready-made CSV into an unlogged table
and one plain INSERT, which is what the sink uses for keys that are new, without checking, staging per batch, or
saying who sent them. Both sides are warmed with a tenth of the rows and then take turns, each with rows of its own and
after a CHECKPOINT. Then single rows at low load: from the answer to the publish until a reader of the table sees the
row.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec
import psycopg
import uvloop

from bench.noop_worker import deploy, trigger
from bench.report import report
from bench.rig import Rig, rig
from tests.support.identity.service_tokens import as_service
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.data.buffered.stage_batches import BatchLimits
from tracelake.domain.access.storage_locations import buffer_folder
from tracelake.runtime.http_client import AsyncClient
from tracelake.sink.drain import Sink
from tracelake.sink.process import QUICK
from tracelake.sink.write import Writer
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.java import find_java
from tracelake.spark.session import start_session, stop_session, warm
from tracelake.store.migrate import migrate
from tracelake.wire.client import DispatcherClient, TaskClient
from tracelake.wire.task.buffers import BufferPublishRequest
from tracelake.wire.task.lifecycle import Claimed

TURNS: Final = 3
BATCH_BYTES: Final = 16 * 1024 * 1024
DAG: Final = """
name: bench
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: detect
    operator: sql
    runtime: ecs_platform
    inputs: [{from: {job: ask}}]
    outputs: [{dataset: alerts}]
    config: {query: "SELECT 'a' AS dedupe_key FROM ask"}
publish:
  alerts:
    storage: postgres
    write_mode: buffered
    columns: {dedupe_key: text, severity: text, block_number: bigint, amount: bigint, note: text}
    unique_key: [dedupe_key]
"""
BY_HAND: Final = (
    "CREATE TABLE public.by_hand"
    " (dedupe_key text PRIMARY KEY, severity text, block_number bigint, amount bigint, note text)"
)
OPEN: Final = "SELECT count(*) FROM buffer_publishes WHERE status = 'Accepted'"


@dataclass(frozen=True)
class Producer:
    claimed: Claimed
    tasks: TaskClient
    objects: DiskObjects

    async def publish(self, body: bytes) -> UUID:
        task = self.claimed.task
        dataset = task.outputs[0].dataset_uuid
        name = buffer_folder("trace-scratch", dataset, task.task_id, 1).object(f"{uuid4().hex}.jsonl")
        await asyncio.to_thread(self.objects.put, name, body)
        fence: dict[str, Any] = {"task_id": task.task_id, "attempt": 1, "lease_token": self.claimed.lease_token}
        asked = BufferPublishRequest(**fence, dataset_uuid=dataset, batch_uri=str(name), batch_size_bytes=len(body))
        return (await self.tasks.publish_buffer(self.claimed.capability_token, asked)).publish_id


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=600_000, help="rows; a few batches of them keep both cores busy")
    parser.add_argument("--singles", type=int, default=20, help="single rows at low load")
    options = parser.parse_args()
    async with rig() as system:
        data = system.server.create_database("data")
        migrate(data, "data")
        figures = await measured(system, data, options.size, options.singles)
    turns, seen = figures
    ours, bare = (statistics.median(item) for item in zip(*turns, strict=True))
    report(
        "sink",
        options.size / ours,
        "rows/s",
        share=round(bare / ours, 2),
        share_is="median seconds by hand, by median seconds through the sink",
        share_by_turn=[round(by_hand / sink, 2) for sink, by_hand in turns],
        by_hand_rows_per_s=round(options.size / bare),
        visible_p50_ms=round(1000 * statistics.median(seen)),
        visible_max_ms=round(1000 * max(seen)),
        settings={"rows": options.size, "turns": TURNS, "batch_bytes": BATCH_BYTES, "singles": options.singles},
    )


Turns = list[tuple[float, float]]
"""Seconds through the sink, and by hand."""


async def measured(system: Rig, data: str, size: int, singles: int) -> tuple[Turns, list[float]]:
    await deploy(system, "bench", DAG)
    objects = DiskObjects(system.home / "objects")
    cache = system.home / "cache"
    options = SparkOptions(local_dir=system.home / "spark", quick_compiler=True, conf=QUICK)
    spark = await asyncio.to_thread(start_session, options, find_java(os.environ, cache), os.environ)
    async with (
        AsyncClient(base_url=system.task_api, verify=system.tls) as task_api,
        AsyncClient(base_url=system.internal_api, verify=system.tls, headers=as_service("worker")) as internal,
    ):
        dispatcher = DispatcherClient(internal)
        producer = Producer(await claimed(system, dispatcher), TaskClient(task_api), objects)
        writer = Writer(lambda: spark, objects, data, BatchLimits(BATCH_BYTES, 1024 * 1024))
        sink = Sink(system.queue, "buffer", dispatcher, writer)
        try:
            await asyncio.to_thread(warm, spark)
            await asyncio.to_thread(make_table, data)
            turns = []
            for turn in range(TURNS + 1):
                numbers = range(turn * 10**8, turn * 10**8 + (size if turn else max(size // 10, 1)))
                await asyncio.to_thread(checkpoint, data)
                ours = await draining(sink, system, producer, list(batches(numbers)))
                await asyncio.to_thread(checkpoint, data)
                turns.append((ours, await asyncio.to_thread(by_hand, data, numbers)))
            seen = await one_by_one(sink, producer, data, singles)
        finally:
            writer.close()
            await asyncio.to_thread(stop_session, spark)
    return turns[1:], seen


async def claimed(system: Rig, dispatcher: DispatcherClient) -> Claimed:
    await trigger(system, "ask", cursor=1)
    while True:
        for delivery in await system.receive(1):
            answer = (await dispatcher.claim_batch([UUID(msgspec.json.decode(delivery.body)["task_id"])], "bench"))[0]
            assert isinstance(answer, Claimed)
            return answer


async def draining(sink: Sink, system: Rig, producer: Producer, bodies: list[bytes]) -> float:
    """Everything is published, then the sink begins: how long until all is settled."""
    for body in bodies:
        await producer.publish(body)
    while (await system.queue.depth("buffer")).ready < len(bodies):  # noqa: ASYNC110 - the Dispatcher puts them there
        await asyncio.sleep(0.01)
    stop, began = asyncio.Event(), time.perf_counter()
    task = asyncio.create_task(sink.drain(stop))
    while await system.pool.fetchval(OPEN):  # noqa: ASYNC110 - as the Dispatcher has it
        await asyncio.sleep(0.01)
    took = time.perf_counter() - began
    stop.set()
    await task
    return took


async def one_by_one(sink: Sink, producer: Producer, data: str, count: int) -> list[float]:
    stop = asyncio.Event()
    task = asyncio.create_task(sink.drain(stop))
    seen = []
    async with await psycopg.AsyncConnection.connect(data, autocommit=True) as reader:
        cursor = await reader.execute("SELECT table_name FROM trace_meta.buffered_tables")
        (table,) = await cursor.fetchone() or ("",)
        look = f"SELECT FROM buffered.{table} WHERE publish_id = %s".encode()
        for number in range(count + 3):
            publish, began = await producer.publish(lines(range(-number - 1, -number))), time.perf_counter()
            while not (await reader.execute(look, (publish,))).rowcount:  # noqa: ASYNC110 - as a reader looks
                await asyncio.sleep(0.002)
            seen.append(time.perf_counter() - began)
    stop.set()
    await task
    return seen[3:]


def row(number: int) -> tuple[str, str, int, int, str]:
    key = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
    return key, "high", number, number * 1_000_003, f"a large transfer of {number} was seen by bench"


def lines(numbers: range) -> bytes:
    names = ("dedupe_key", "severity", "block_number", "amount", "note")
    return b"".join(msgspec.json.encode(dict(zip(names, row(number), strict=True))) + b"\n" for number in numbers)


def batches(numbers: range) -> Iterator[bytes]:
    each = BATCH_BYTES // (len(lines(numbers[-1:])) + 2)
    return (lines(numbers[start : start + each]) for start in range(0, len(numbers), each))


def make_table(data: str) -> None:
    with psycopg.connect(data, autocommit=True) as connection:
        connection.execute(BY_HAND.encode())


def checkpoint(data: str) -> None:
    """What one side wrote is not left for the other to flush."""
    with psycopg.connect(data, autocommit=True) as connection:
        connection.execute("CHECKPOINT")


def by_hand(data: str, numbers: range) -> float:
    text = "".join(",".join(map(str, row(number))) + "\n" for number in numbers).encode()
    with psycopg.connect(data, autocommit=True) as connection:
        began = time.perf_counter()
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute("CREATE UNLOGGED TABLE staging.by_hand (LIKE public.by_hand)")
            with cursor.copy("COPY staging.by_hand FROM STDIN (FORMAT csv)") as copy:
                copy.write(text)
            cursor.execute("INSERT INTO public.by_hand SELECT * FROM staging.by_hand ORDER BY dedupe_key")
            cursor.execute("DROP TABLE staging.by_hand")
        return time.perf_counter() - began


if __name__ == "__main__":
    uvloop.run(main())
