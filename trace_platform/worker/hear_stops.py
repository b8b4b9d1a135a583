"""A worker waits at the Dispatcher's door for tasks to be ended or held: each of its own then beats at once and hears.

Only a shortcut: without it, a heartbeat brings the same news when it is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NoReturn

import structlog

from trace_platform.client import DispatcherClient
from trace_platform.errors import TraceError
from trace_platform.worker.lease_keeper import LeaseKeeper

log = structlog.get_logger()

AFTER_NEWS_SECONDS = 0.2
"""What is ended meanwhile is told together."""
AFTER_OUTAGE_SECONDS = 5.0


async def hear_stops(dispatcher: DispatcherClient, keepers: Collection[LeaseKeeper]) -> NoReturn:
    """Until canceled, for those that are among `keepers` in that moment."""
    mark = ""
    while True:
        try:
            answer = await dispatcher.stops(mark)
        except TraceError as away:  # also a Dispatcher that does not know the question yet
            log.debug("stops are not heard", because=away.message)
            await asyncio.sleep(AFTER_OUTAGE_SECONDS)
            continue
        except Exception:
            log.exception("stops are not heard")
            await asyncio.sleep(AFTER_OUTAGE_SECONDS)
            continue
        mark = answer.mark
        if answer.news:
            for keeper in tuple(keepers):
                keeper.beat_now()
            await asyncio.sleep(AFTER_NEWS_SECONDS)
