"""`trace worker`: one warm Spark session, and the wrapper that claims tasks and runs them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from trace_platform.client import dispatcher_client, task_client
from trace_platform.operators.context import Resources
from trace_platform.ports import ObjectStore, Queue
from trace_platform.process import Process, until_answers
from trace_platform.settings import Settings
from trace_platform.spark.class_archive import archive_for
from trace_platform.spark.configuration import SparkOptions
from trace_platform.spark.java import find_java
from trace_platform.spark.session import start_session, stop_session, warm
from trace_platform.store.db import answers, open_pool, required
from trace_platform.worker.run_task import Runner
from trace_platform.worker.wrapper import Wrapper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE_AFTER_SECONDS = 60.0
"""Making the class archive takes a core for some seconds: not while the system starts, nor in a short run."""


async def main(process: Process, queue: Queue, objects: ObjectStore) -> None:
    settings = process.settings
    async with (
        open_pool(required(settings.data.dsn, "data.dsn"), name="worker", max_size=4) as data,
        dispatcher_client(settings) as dispatcher,
        task_client(settings) as tasks,
        _spark(process, settings) as (spark, says),
    ):
        wrapper = Wrapper(
            queue=queue,
            queue_name=f"tasks-{settings.worker.runtime}",
            dispatcher=dispatcher,
            tasks=tasks,
            runner=Runner(objects, resources(settings), spark),
            worker_id=f"worker {socket.gethostname()}:{os.getpid()}",
            concurrency=settings.worker.concurrency,
        )
        await until_answers(process, "data Postgres", lambda: answers(data))
        await until_answers(process, "the Dispatcher", dispatcher.ready)
        process.ready(says)
        await wrapper.work(process.stop)


def resources(settings: Settings) -> Resources:
    return Resources(data_dsn=required(settings.data.dsn, "data.dsn"), folder=settings.worker.files_folder)


@asynccontextmanager
async def _spark(process: Process, settings: Settings) -> AsyncIterator[tuple[SparkSession, str]]:
    """A warm session; says what it is."""
    process.status("starts Spark")
    cache = settings.home / "cache"
    java = None if settings.spark.remote else await asyncio.to_thread(find_java, os.environ, cache)
    options = SparkOptions(
        local_dir=settings.home / "work" / "spark",
        app_name="trace worker",
        master=settings.spark.master,
        remote=settings.spark.remote,
        driver_memory=settings.spark.driver_memory,
        shuffle_partitions=settings.spark.shuffle_partitions,
        class_archive=archive_for(java, cache) if java else None,
    )
    session = await asyncio.to_thread(start_session, options, java, os.environ)
    archive = asyncio.create_task(_archive_later(settings)) if java else None
    try:
        report = await asyncio.to_thread(warm, session)
        where = settings.spark.remote or settings.spark.master
        runs_on = f", Java {java.version} ({java.origin})" if java else ""
        warmed = f"warm: {report.rows:,} rows in {report.seconds:.1f} s"
        yield session, f"Spark {session.version} on {where}{runs_on}, {warmed}"
    finally:
        if archive:
            archive.cancel()
        await asyncio.to_thread(stop_session, session)


async def _archive_later(settings: Settings) -> None:
    """The next start of Spark is quicker by what this prepares; it is only a convenience, and may fail."""
    await asyncio.sleep(ARCHIVE_AFTER_SECONDS)
    argv = (sys.executable, "-m", "trace_platform.spark.class_archive", str(settings.home / "cache"))
    maker = await asyncio.create_subprocess_exec(*argv)
    try:
        await maker.wait()
    finally:
        with suppress(ProcessLookupError):
            maker.kill()
