"""`trace scheduler`: connects to the Dispatcher's internal API. It does not fire cron sources yet."""

from __future__ import annotations

from tracelake.runtime.process import Process, wait_for_service
from tracelake.wire.client import dispatcher_client


async def main(process: Process) -> None:
    async with dispatcher_client(process.settings) as dispatcher:
        await wait_for_service(process, "the Dispatcher", dispatcher.ready)
        process.ready("the Dispatcher answers; no cron source is declared")
        await process.stop.wait()
