"""`trace sink`: drains the Buffer Queue into data Postgres, on Spark."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from tracelake.data.buffered.stage_batches import BatchLimits
from tracelake.ports import ObjectStore, Queue
from tracelake.runtime.process import Process, until_answers
from tracelake.settings import SinkSettings
from tracelake.sink.drain import Sink
from tracelake.sink.prune_applied import pruning
from tracelake.sink.spark import OwnSpark, starter
from tracelake.sink.write import Writer
from tracelake.store.db import answers, open_pool, required
from tracelake.wire.client import dispatcher_client

BUFFER_QUEUE = "buffer"
"""As the Dispatcher calls it."""


async def main(process: Process, queue: Queue, objects: ObjectStore) -> None:
    settings = process.settings
    dsn = required(settings.data.dsn, "data.dsn")
    spark = OwnSpark(starter(settings))
    writer = Writer(spark.session, objects, dsn, limits_of(settings.sink), settings.sink.max_crashes)
    try:
        async with dispatcher_client(settings) as dispatcher, open_pool(dsn, name="sink", max_size=1) as data:
            await until_answers(process, "data Postgres", lambda: answers(data))
            await until_answers(process, "the Dispatcher", dispatcher.ready)
            if not process.stop.is_set():
                await asyncio.to_thread(writer.sweep)
            process.ready("data Postgres and the Dispatcher answer; Spark starts with the first message")
            told = settings.sink
            sink = Sink(queue, BUFFER_QUEUE, dispatcher, writer, told.messages, told.groups, metrics=process.metrics)
            async with pruning(data, dispatcher, timedelta(days=told.applied_kept_days)):
                await sink.drain(process.stop)
    finally:
        writer.close()
        await asyncio.to_thread(spark.close)


def limits_of(told: SinkSettings) -> BatchLimits:
    return BatchLimits(told.batch_bytes, told.line_bytes, told.unpacked_bytes, told.tasks)
