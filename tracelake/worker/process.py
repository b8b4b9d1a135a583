"""`trace worker`: one warm Spark session, and the wrapper that claims tasks and runs them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import structlog

from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.errors import SettingsError, SetupError
from tracelake.operators.api.context import Resources
from tracelake.ports import ObjectStore, Queue
from tracelake.runtime.process import Process, wait_for_service
from tracelake.runtime.redact import redactor
from tracelake.settings import RpcPoolSettings, Settings
from tracelake.spark.owner import SparkOwner, options_for
from tracelake.store.db import answers, open_pool, required
from tracelake.wire.client import TaskClient, dispatcher_client, task_client
from tracelake.worker.lease_rpc_shares import leased_pools
from tracelake.worker.run_task import Runner
from tracelake.worker.task_keys import OpenStore, TaskKeys
from tracelake.worker.wrapper import Wrapper

log = structlog.get_logger()

SPARK_LOOK_SECONDS = 1.0
ARCHIVE_AFTER_SECONDS = 60.0
"""Making the class archive takes a core for some seconds: not while the system starts, nor in a short run."""


async def main(process: Process, queue: Queue, objects: ObjectStore, open_store: OpenStore | None = None) -> None:
    """`open_store`: the store of tasks that have keys of their own; None: they use `objects`."""
    check_task_credentials(process.settings)
    settings = process.settings
    worker_id, usable = f"worker {socket.gethostname()}:{os.getpid()}", resources(settings)
    async with (
        open_pool(required(settings.data.dsn, "data.dsn"), name="worker", max_size=4) as data,
        dispatcher_client(settings) as dispatcher,
        task_client(settings) as tasks,
        _spark(process, settings) as (spark, status),
    ):
        # In this order: where all of it starts at once, there is no Dispatcher before there are databases.
        await wait_for_service(process, "the Dispatcher", dispatcher.ready)
        await wait_for_service(process, "data Postgres", lambda: answers(data))
        async with (
            leased_pools(dispatcher, worker_id, usable.rpc_pools, settings.worker.limits_host) as pools,
            _task_keys(tasks, settings, open_store) as keys,
        ):
            usable = replace(usable, rpc_pools=pools)
            runner = Runner(
                objects,
                usable,
                spark.session(),
                hide=redactor(settings),
                secrets=settings.secrets,
                task_keys=keys,
            )
            wrapper = Wrapper(
                queue=queue,
                queue_name=queue_of(settings),
                dispatcher=dispatcher,
                tasks=tasks,
                runner=runner,
                worker_id=worker_id,
                concurrency=settings.worker.concurrency,
                metrics=process.metrics,
                normal_share=settings.flow.normal_share,
                reserved=settings.flow.reserved_slots,
            )
            process.ready(status)
            watch = asyncio.create_task(_stop_without_spark(process, runner, spark))
            await wrapper.work(process.stop)
            watch.cancel()
        if runner.spark_lost.is_set():
            raise SetupError("Spark has ended, so this worker ends too", hint="its supervisor starts both anew")


def check_task_credentials(settings: Settings) -> None:
    """SettingsError if tasks are to have keys of a store that has none."""
    if settings.worker.task_credentials and settings.objects.backend == "disk":
        hint = "remove the setting, or choose another objects.backend"
        raise SettingsError("a disk store has no keys", where="worker.task_credentials", hint=hint)


@asynccontextmanager
async def _task_keys(
    tasks: TaskClient, settings: Settings, open_store: OpenStore | None
) -> AsyncIterator[TaskKeys | None]:
    if open_store is None:
        yield None
        return
    keys = TaskKeys(tasks, settings.worker.limits_host, open_store)
    async with keys.serving():
        yield keys


async def _stop_without_spark(process: Process, runner: Runner, spark: SparkOwner) -> None:
    """A worker whose Spark is gone would fail every task that it claims."""
    while not runner.spark_lost.is_set():
        await asyncio.sleep(SPARK_LOOK_SECONDS)
        if not spark.is_running():
            runner.spark_lost.set()
    log.error("Spark has ended")
    process.stop.set()


def resources(settings: Settings) -> Resources:
    pools = {name: pool_of(name, pool) for name, pool in settings.rpc_pools.items() if pool.endpoints is not None}
    dsn = required(settings.data.dsn, "data.dsn")
    return Resources(data_dsn=dsn, rpc_pools=pools, folder=settings.worker.files_folder)


def pool_of(name: str, settings: RpcPoolSettings) -> RpcPool:
    return RpcPool(
        name,
        settings.chain_id,
        tuple(Endpoint(url, called, headers) for called, url, headers in settings.addresses()),
        max_concurrency=settings.max_concurrency,
        batch_size=settings.batch_size,
        requests_per_second=settings.requests_per_second,
        timeout=settings.timeout_seconds,
        verify_roots=settings.verify_roots,
    )


def queue_of(settings: Settings) -> str:
    """The queue on which workers of this one's runtime wait."""
    name = settings.worker.runtime
    runtime = settings.runtimes.get(name)
    if runtime is None or runtime.queue is None:
        known = ", ".join(item for item, its in settings.runtimes.items() if its.queue)
        raise SettingsError(f"runtime {name!r} has no queue", where="worker.runtime", hint=f"one of: {known}")
    return runtime.queue


@asynccontextmanager
async def _spark(process: Process, settings: Settings) -> AsyncIterator[tuple[SparkOwner, str]]:
    """A warm session, and its status."""
    process.status("starts Spark")
    options = replace(options_for(settings, "worker"), local_dir=settings.home / "work" / "spark")
    spark, archive = SparkOwner(options, settings.home / "cache"), None
    try:
        report = await asyncio.to_thread(spark.warm)
        if spark.lacks_class_archive:
            archive = asyncio.create_task(_archive_later(settings))
        yield spark, f"{spark.status()}, warm: {report.rows:,} rows in {report.seconds:.1f} s"
    finally:
        if archive:
            archive.cancel()
        await asyncio.to_thread(spark.stop)


async def _archive_later(settings: Settings) -> None:
    """The next start of Spark is quicker by what this prepares; it is only a convenience, and may fail."""
    await asyncio.sleep(ARCHIVE_AFTER_SECONDS)
    argv = (sys.executable, "-m", "tracelake.spark.class_archive", str(settings.home / "cache"))
    maker = await asyncio.create_subprocess_exec(*argv)
    try:
        await maker.wait()
    finally:
        with suppress(ProcessLookupError):
            maker.kill()
