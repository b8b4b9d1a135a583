"""Publishes batches to the sink again that were accepted long ago and whose message is lost.

A message that many sinks died over becomes a dead letter of its queue, but the publish record stays. A batch that is
received twice is applied once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.dispatcher.signal import Signal
from tracelake.domain.flow.tiers import BUFFER_QUEUE
from tracelake.ports import Queue
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

BATCH = 500


@dataclass(frozen=True)
class RepublishBatches(Periodic):
    every_seconds = 60.0

    pool: asyncpg.Pool
    queue: Queue
    outbox: Signal
    after: timedelta

    async def once(self) -> int:
        """Returns how many. A batch that may still wait in the queue, behind older messages, is left alone."""
        depth = await self.queue.depth(BUFFER_QUEUE)
        age = self.after + timedelta(seconds=depth.oldest_age_seconds)
        republished = int(await self.pool.fetchval(queries("buffered")["republish_lost"], age, BATCH))
        crash_point("republish_batches.written", when=republished)
        if republished:
            self.outbox.notify()
        return republished
