"""`trace sink`: drains the Buffer Queue into data Postgres, on Spark."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Final

from tracelake.data.buffered.stage_batches import BatchLimits
from tracelake.domain.flow.tiers import BUFFER_QUEUE
from tracelake.ports import ObjectStore, Queue
from tracelake.runtime.background import in_background
from tracelake.runtime.process import Process, wait_for_service
from tracelake.settings import Settings, SinkSettings
from tracelake.sink.drain import Sink
from tracelake.sink.prune_applied import keep_pruning
from tracelake.sink.write import Writer
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.owner import SparkOwner, options_for
from tracelake.store.db import answers, open_pool, required
from tracelake.wire.client import dispatcher_client

QUICK: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "FALLBACK",  # Spark's own: its rows are many
}
"""Each job is one stage of Python: more planning and compiling would cost a third of its time."""


async def main(process: Process, queue: Queue, objects: ObjectStore) -> None:
    settings = process.settings
    dsn = required(settings.data.dsn, "data.dsn")
    # Started by the first message and not warmed: a batch waits for it. Without buffered datasets there is no message.
    spark = SparkOwner(spark_options(settings), settings.home / "cache")
    writer = Writer(spark.session, objects, dsn, limits_of(settings.sink), settings.sink.max_crashes)
    try:
        async with dispatcher_client(settings) as dispatcher, open_pool(dsn, name="sink", max_size=1) as data:
            await wait_for_service(process, "data Postgres", lambda: answers(data))
            await wait_for_service(process, "the Dispatcher", dispatcher.ready)
            if not process.stop.is_set():
                await asyncio.to_thread(writer.sweep)
            process.ready("data Postgres and the Dispatcher answer; Spark starts with the first message")
            limits = settings.sink
            sink = Sink(
                queue, BUFFER_QUEUE, dispatcher, writer, limits.messages, limits.groups, metrics=process.metrics
            )
            async with in_background(keep_pruning(data, dispatcher, timedelta(days=limits.applied_kept_days))):
                await sink.drain(process.stop)
    finally:
        writer.close()
        await asyncio.to_thread(spark.stop)


def spark_options(settings: Settings) -> SparkOptions:
    options = options_for(settings, "sink")
    return replace(
        options,
        driver_memory=settings.sink.driver_memory,
        quick_compiler=True,  # rows are checked in Python and merged in Postgres
        conf={**options.conf, **({} if settings.spark.quick_compiler else QUICK)},
    )


def limits_of(limits: SinkSettings) -> BatchLimits:
    return BatchLimits(limits.batch_bytes, limits.line_bytes, limits.unpacked_bytes, limits.tasks)
