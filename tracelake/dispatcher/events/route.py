"""Step 4 of one event: creates a task for each job that it triggers, once, with a wake-up, which is published next.

One statement routes everything that is due. If Postgres refuses it, the entries are tried one by one, so that a bad one
is postponed with its error and blocks no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import asyncpg

from tracelake.dispatcher.outbox.dispatch import WakeUp
from tracelake.domain.task import NEW, Backoff, TaskState, retry_delay
from tracelake.runtime.metrics import Metrics
from tracelake.store.queries import Row, fetch_row, fetch_rows, queries

BATCH = 500
"""An event waits at most for the batch in progress, some 30 ms; batches of 100 cost a third more for each event."""
TURN = 20
"""How many events of each dataset are routed in its turn."""
HOLD = timedelta(seconds=10)
"""How long a replica may take to publish the wake-ups of tasks that it created, before another does it."""
TRIES = 8
BACKOFF = Backoff(1, 60)
Kind = Literal["route_event", "route_invalidation"]
REFUSED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)


@dataclass(frozen=True)
class Routed:
    handled: int
    wake_ups: Sequence[WakeUp]


class RoutedBatch(Row, frozen=True):
    events: int
    tasks: int
    entries: list[int] | None
    payloads: list[str] | None


class DueEntry(Row, frozen=True):
    id: int
    attempts: int


@dataclass(frozen=True)
class Router:
    database: asyncpg.Pool
    replica: str
    metrics: Metrics

    async def route(self, kind: Kind, *, in_turn: bool = False) -> Routed:
        """Everything due of this kind, up to a batch; or the first events of each dataset, however many others wait."""
        try:
            return await self._route(kind, in_turn=in_turn)
        except REFUSED:
            return await self._one_by_one(kind)

    async def _route(self, kind: Kind, only: int | None = None, *, in_turn: bool = False) -> Routed:
        sql, values = queries("route"), (BATCH if only is None else 1, self.replica, HOLD, only)
        if kind == "route_event":
            batch = await fetch_row(self.database, sql["route_events"], RoutedBatch, *values, in_turn, TURN)
        else:
            batch = await fetch_row(self.database, sql["route_invalidations"], RoutedBatch, *values)
        self.metrics.moved(NEW, TaskState.QUEUED, batch.tasks)
        wake_ups = zip(batch.entries or [], batch.payloads or [], strict=True)
        return Routed(batch.events, [WakeUp(*wake_up) for wake_up in wake_ups])

    async def _one_by_one(self, kind: Kind) -> Routed:
        sql, wake_ups = queries("outbox"), list[WakeUp]()
        due = await fetch_rows(self.database, sql["due_routing"], DueEntry, kind, BATCH)
        for entry in due:
            try:
                wake_ups += (await self._route(kind, entry.id)).wake_ups
            except REFUSED as wrong:
                delay = timedelta(seconds=retry_delay(entry.attempts + 1, BACKOFF, 0.5))
                is_last = entry.attempts + 1 >= TRIES
                await self.database.execute(sql["put_off_routing"], entry.id, delay, str(wrong), is_last)
        return Routed(len(due), wake_ups)
