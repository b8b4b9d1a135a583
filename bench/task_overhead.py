"""What a task costs besides its work: `python -m bench.task_overhead [--size N]`.

A few blocks into Parquet on a warm worker, one task at a time, from the trigger to the commit (routed, queued, claimed,
run, verified, committed, over TLS and with tokens); beside it, in turns, the same work in the same Spark session
without any platform. The difference is the overhead. Then many tasks at once, where most of it hides behind work.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import uvloop

from bench.noop_worker import deploy, trigger
from bench.report import report
from bench.rig import Rig, rig
from tests.support.chain.devchain import Devchain, running
from tests.support.identity.service_tokens import as_service
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.data.files.parquet_writer import OutputFolder, write_ranges
from tracelake.domain.access.object_names import Folder
from tracelake.domain.ranges import inclusive
from tracelake.operators.api.context import Resources
from tracelake.operators.cryo_ingest import fetch
from tracelake.operators.helpers.chain_tables import ALL
from tracelake.runtime.http_client import AsyncClient
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.java import find_java
from tracelake.spark.session import start_session, stop_session, warm
from tracelake.wire.client import DispatcherClient, TaskClient
from tracelake.worker.run_task import Runner
from tracelake.worker.wrapper import Wrapper

BLOCKS: Final = 20
"""A task's."""
WARM: Final = 5
CONCURRENCY: Final = 4
DAG = """
name: bench
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: cut, operator: range_splitter, runtime: dispatcher, config: {chunk: 20}, inputs: [{from: {job: ask}}]}
  - name: work
    operator: cryo_ingest
    runtime: ecs_platform
    config: {rpc_pool: dev}
    inputs: [{from: {job: cut}}]
    outputs: [blocks, transactions, logs]
"""
DONE = "SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work' AND t.status = 'Completed'"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=30, help="tasks one at a time, and as many at once")
    size = parser.parse_args().size
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as name, running(blocks=BLOCKS * (2 * size + WARM)) as devchain:
        folder = Path(name)
        spark = start_session(SparkOptions(folder / "spark"), find_java(os.environ, folder / "cache"), os.environ)
        try:
            warm(spark)
            async with rig() as system, working(system, spark, devchain):
                await measure(system, spark, devchain, folder, size)
        finally:
            stop_session(spark)


async def measure(system: Rig, spark: Any, devchain: Devchain, folder: Path, size: int) -> None:
    await deploy(system, "bench", DAG)
    for number in range(WARM):
        await one_task(system, number)
        await asyncio.to_thread(bare, spark, devchain, folder, number)
    with_platform, alone = [], []
    for number in range(WARM, WARM + size):
        with_platform.append(await one_task(system, number))
        alone.append(await asyncio.to_thread(bare, spark, devchain, folder, number))
    began = time.perf_counter()
    await trigger(system, "ask", start=BLOCKS * (WARM + size), end=BLOCKS * (WARM + 2 * size) - 1)
    await done(system, WARM + 2 * size)
    at_once = 1000 * (time.perf_counter() - began) / size
    overheads = [item - other for item, other in zip(with_platform, alone, strict=True)]
    report(
        "task_overhead",
        statistics.median(overheads),
        "ms/task",
        task_ms=round(statistics.median(with_platform), 1),
        work_alone_ms=round(statistics.median(alone), 1),
        many_at_once_ms=round(at_once, 1),
        settings={"tasks": size, "blocks_per_task": BLOCKS, "concurrency": CONCURRENCY},
    )


async def one_task(system: Rig, number: int) -> float:
    """Milliseconds from the request to the commit."""
    began = time.perf_counter()
    await trigger(system, "ask", start=BLOCKS * number, end=BLOCKS * (number + 1) - 1)
    await done(system, number + 1)
    return 1000 * (time.perf_counter() - began)


async def done(system: Rig, count: int) -> None:
    async with asyncio.timeout(300):
        while await system.pool.fetchval(DONE) < count:  # noqa: ASYNC110 - several processes' work is waited for
            await asyncio.sleep(0.002)


def bare(spark: Any, devchain: Devchain, folder: Path, number: int) -> float:
    """Milliseconds for the same, without calls to a Dispatcher."""
    place = OutputFolder(DiskObjects(folder / "bare"), Folder.parse(f"s3://bench/{number}/"))
    span = inclusive(BLOCKS * number, BLOCKS * (number + 1) - 1)
    began = time.perf_counter()
    write_ranges(spark, partial(fetch, devchain.pool(), ALL), [span], dict.fromkeys(ALL, place), {t: t for t in ALL})
    return 1000 * (time.perf_counter() - began)


@asynccontextmanager
async def working(system: Rig, spark: Any, devchain: Devchain) -> AsyncIterator[None]:
    headers = as_service("worker")
    async with (
        AsyncClient(base_url=system.internal_api, headers=headers, verify=system.tls) as internal,
        AsyncClient(base_url=system.task_api, verify=system.tls) as task,
    ):
        runner = Runner(DiskObjects(system.objects), Resources(rpc_pools={"dev": devchain.pool()}), spark)
        clients = DispatcherClient(internal), TaskClient(task)
        stop = asyncio.Event()
        worker = Wrapper(system.queue, "tasks-ecs_platform", *clients, runner, "bench", CONCURRENCY)
        work = asyncio.create_task(worker.work(stop))
        try:
            yield
        finally:
            stop.set()
            await work


if __name__ == "__main__":
    uvloop.run(main())
