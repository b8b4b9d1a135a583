"""`trace sink`: holds the queue and the data database, ready for buffered batches. The draining comes with them."""

from __future__ import annotations

from trace_platform.process import Process, until_answers
from trace_platform.store.db import answers, open_pool, required


async def main(process: Process) -> None:
    settings = process.settings
    async with (
        open_pool(required(settings.data.dsn, "data.dsn"), name="sink", max_size=2) as data,
        open_pool(required(settings.queue.dsn, "queue.dsn"), name="sink", max_size=2) as queue,
    ):
        await until_answers(process, "data Postgres", lambda: answers(data))
        await until_answers(process, "the queue", lambda: answers(queue))
        process.ready("data Postgres and queue answer; no buffered dataset is declared")
        await process.stop.wait()
