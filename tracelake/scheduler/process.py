"""`trace scheduler`: has the Dispatcher decide the slots of cron sources when they are due.

It keeps no state and reads no clock of its own but the monotonic one: the Dispatcher says in how many seconds the next
slot is due, by the clock of Postgres, and answers a waiting call when schedules change. Any number may run.
"""

from __future__ import annotations

import asyncio

from tracelake.errors import Unavailable
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.process import Process, wait_for_service
from tracelake.runtime.retry import retry_with_backoff
from tracelake.wire.client import DispatcherClient, dispatcher_client
from tracelake.wire.internal.changes import wait_until_due


async def main(process: Process) -> None:
    async with dispatcher_client(process.settings) as dispatcher:
        await wait_for_service(process, "the Dispatcher", dispatcher.ready)
        process.ready("the Dispatcher answers")
        firing = asyncio.create_task(fire_when_due(dispatcher))
        stopping = asyncio.create_task(process.stop.wait())
        await asyncio.wait({firing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (firing, stopping):
            task.cancel()
        await asyncio.gather(firing, stopping, return_exceptions=True)


async def fire_when_due(dispatcher: DispatcherClient) -> None:
    while True:
        crash_point("scheduler.before_fire")
        answer = await retry_with_backoff(dispatcher.fire_schedules)
        crash_point("scheduler.after_fire")
        try:
            await wait_until_due(answer.next_in_seconds, answer.mark, dispatcher.schedule_changes)
        except Unavailable:
            continue  # what has changed meanwhile is not known
