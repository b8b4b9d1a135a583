"""Step 4 of one event: creates a task for each job that it triggers, once, with a wake-up, which is published next.

One statement routes everything that is due. If Postgres refuses it, the entries are tried one by one, so that a bad one
is postponed with its error and blocks no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.outbox.dispatch import WakeUp
from tracelake.domain.task import NEW, Backoff, TaskState, retry_delay
from tracelake.store.queries import queries

BATCH = 500
HOLD = timedelta(seconds=10)
"""How long a replica may take to publish the wake-ups of tasks that it created, before another does it."""
TRIES = 8
BACKOFF = Backoff(1, 60)
STATEMENTS = {"route_event": "route_events", "route_invalidation": "route_invalidations"}


@dataclass(frozen=True)
class Routed:
    handled: int
    made: int
    waiting: int
    wake_ups: Sequence[WakeUp]


async def route(control: Control, kind: str) -> Routed:
    """Everything due of this kind, up to a batch."""
    try:
        return await _route(control, kind)
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError):
        return await _one_by_one(control, kind)


async def _route(control: Control, kind: str, only: int | None = None) -> Routed:
    row = await control.hot.fetchrow(queries("route")[STATEMENTS[kind]], BATCH, control.replica, HOLD, only)
    assert row is not None  # noqa: S101 - a SELECT of scalars always has its row
    control.metrics.moved(NEW, TaskState.QUEUED, row["tasks"])
    wake_ups = zip(row["entries"] or [], row["payloads"] or [], strict=True)
    return Routed(row["events"], row["tasks"], row["waiting"], [WakeUp(*wake_up) for wake_up in wake_ups])


async def _one_by_one(control: Control, kind: str) -> Routed:
    sql = queries("outbox")
    made, wake_ups = 0, list[WakeUp]()
    due = await control.hot.fetch(sql["due_routing"], kind, BATCH)
    for row in due:
        try:
            routed = await _route(control, kind, row["id"])
        except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as wrong:
            attempt = row["attempts"] + 1
            delay = timedelta(seconds=retry_delay(attempt, BACKOFF, 0.5))
            await control.hot.execute(sql["put_off_routing"], row["id"], delay, str(wrong), attempt >= TRIES)
        else:
            made += routed.made
            wake_ups += routed.wake_ups
    return Routed(len(due), made, 0, wake_ups)
