"""Waits at the Dispatcher for tasks to be ended or held: then every task of this worker sends a heartbeat at once.

Only a shortcut: the next regular heartbeat returns the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NoReturn

import structlog

from tracelake.errors import TraceError
from tracelake.runtime.retry import delays
from tracelake.wire.client import DispatcherClient
from tracelake.worker.lease_keeper import LeaseKeeper

log = structlog.get_logger()

PAUSE_SECONDS = 0.2
"""Between two calls, whatever the answer: the next one returns what was ended meanwhile."""


async def listen_for_stops(dispatcher: DispatcherClient, keepers: Collection[LeaseKeeper]) -> NoReturn:
    """Until canceled, for those that are among `keepers` in that moment."""
    mark, missed, pauses = "", False, delays()
    while True:
        try:
            answer = await dispatcher.stops(mark)
        except Exception as away:  # noqa: BLE001 - whatever it is, heartbeats go on
            _log(away)
            mark, missed = "", True  # what was ended meanwhile is not reported any more
            await asyncio.sleep(next(pauses))
            continue
        if answer.changed or missed:
            for keeper in tuple(keepers):
                keeper.beat_now()
        mark, missed, pauses = answer.mark, False, delays()
        await asyncio.sleep(PAUSE_SECONDS)


def _log(away: Exception) -> None:
    if isinstance(away, TraceError):  # also of an older Dispatcher without this call
        log.debug("cannot listen for stops", because=away.message)
    else:
        log.error("cannot listen for stops", exc_info=away)
