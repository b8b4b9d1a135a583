"""Batches that were accepted long ago and whose message is gone are owed to the sink again.

A message that many sinks in turn died over becomes a dead letter of its queue; the publish stays, and so does the
entry. A batch that comes twice is applied once.
"""

from __future__ import annotations

from datetime import timedelta

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.outbox.drain import BUFFER_QUEUE
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

BATCH = 500
BEAT_SECONDS = 60.0


class RepublishBatches:
    def __init__(self, control: Control, after: timedelta) -> None:
        self._control = control
        self._after = after

    async def once(self) -> int:
        """How many. One that may still wait in the queue, because older ones do, is left alone."""
        depth = await self._control.queue.depth(BUFFER_QUEUE)
        waits = self._after + timedelta(seconds=depth.oldest_age_seconds)
        owed = int(await self._control.pool.fetchval(queries("buffered")["owe_again"], waits, BATCH))
        crash_point("republish_batches.owed", when=owed)
        if owed:
            self._control.outbox_signal.notify()
        return owed

    async def next_due(self) -> float | None:
        return BEAT_SECONDS
