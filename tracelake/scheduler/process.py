"""`trace scheduler`: holds the Dispatcher's internal door, ready for cron sources. The firing comes with them."""

from __future__ import annotations

from tracelake.runtime.process import Process, until_answers
from tracelake.wire.client import dispatcher_client


async def main(process: Process) -> None:
    async with dispatcher_client(process.settings) as dispatcher:
        await until_answers(process, "the Dispatcher", dispatcher.ready)
        process.ready("the Dispatcher answers; no cron source is declared")
        await process.stop.wait()
