"""A worker waits at the Dispatcher's door for tasks to be ended or held: each of its own then beats at once and hears.

Only a shortcut: without it, a heartbeat brings the same news when it is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NoReturn

import structlog

from tracelake.errors import TraceError
from tracelake.wire.client import DispatcherClient
from tracelake.worker.lease_keeper import LeaseKeeper

log = structlog.get_logger()

PAUSE_SECONDS = 0.2
"""Between two questions, whatever the answer: what is ended meanwhile is told with the next one."""
AFTER_OUTAGE_SECONDS = 1.0


async def listen_for_stops(dispatcher: DispatcherClient, keepers: Collection[LeaseKeeper]) -> NoReturn:
    """Until canceled, for those that are among `keepers` in that moment."""
    mark, missed = "", False
    while True:
        try:
            answer = await dispatcher.stops(mark)
        except Exception as away:  # noqa: BLE001 - whatever it is, heartbeats go on
            _say(away)
            mark, missed = "", True  # what was ended meanwhile is nobody's news any more
            await asyncio.sleep(AFTER_OUTAGE_SECONDS)
            continue
        if answer.news or missed:
            for keeper in tuple(keepers):
                keeper.beat_now()
        mark, missed = answer.mark, False
        await asyncio.sleep(PAUSE_SECONDS)


def _say(away: Exception) -> None:
    if isinstance(away, TraceError):  # also of a Dispatcher that does not know the question yet
        log.debug("stops are not heard", because=away.message)
    else:
        log.error("stops are not heard", exc_info=away)
