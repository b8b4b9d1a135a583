"""What was committed is compared with what must follow from it, at a slow beat, and what was lost on the way is mended.

Everything in Trace is promised in the transaction that gives rise to it, so there should be nothing to find. If there
is (a row deleted by hand, a queue that forgot, a fault of ours), it is put back on its usual way: by a entry in the
outbox, or an event under the id that it would have had. So the usual way, should it be only late, makes nothing twice.

A beat looks at what is new since the last one and at a slice of the past, never at all of it. One replica at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import structlog

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.events.new_events import NewEvent, transposed
from tracelake.domain.event import Event, read_scope
from tracelake.domain.ids import DatasetId, DatasetVersion, TaskId
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import LoopSettings
from tracelake.store.queries import queries

log = structlog.get_logger()

MARGIN = timedelta(minutes=5)
"""A row bears the time at which its transaction began: one may be seen only so much later."""

Connection = asyncpg.pool.PoolConnectionProxy


@dataclass(frozen=True)
class Mended:
    """How much of each kind was put back on its way."""

    events: int = 0
    untold: int = 0
    invalidations: int = 0
    wake_ups: int = 0

    @property
    def all(self) -> int:
        return self.events + self.untold + self.invalidations + self.wake_ups


class Reconciler:
    def __init__(self, control: Control, settings: LoopSettings) -> None:
        self._control = control
        self._settings = settings

    async def once(self) -> int:
        mended = await self.look()
        crash_point("reconcile.after_commit")
        if mended.all:
            log.warning("what was lost is on its way again", **vars(mended))
            self._control.outbox_signal.notify()
        return mended.all

    async def next_due(self) -> float | None:
        return None  # the beat is one for all replicas, and kept in the database

    async def look(self) -> Mended:
        beat = timedelta(seconds=self._settings.reconcile_seconds)
        if not await self._control.pool.fetchval(queries("reconcile")["is_due"], beat):
            return Mended()
        oldest = await self._oldest_messages()  # before the transaction: a queue may take its time
        async with self._control.pool.acquire() as connection, connection.transaction():
            mark = await self._take_mark(connection, beat)
            return Mended() if mark is None else await self._mend(connection, mark, oldest)

    async def _take_mark(self, connection: Connection, beat: timedelta) -> asyncpg.Record | None:
        slice_ = timedelta(seconds=self._settings.reconcile_slice_seconds)
        grace = timedelta(seconds=self._settings.reconcile_grace_seconds)
        await connection.execute(queries("reconcile")["first_mark"])
        return await connection.fetchrow(queries("reconcile")["take_mark"], beat, slice_, grace, MARGIN)

    async def _mend(self, connection: Connection, mark: asyncpg.Record, oldest: dict[str, timedelta]) -> Mended:
        sql = queries("reconcile")
        stretches = [(mark["fresh_from"], mark["fresh_to"]), (mark["swept_from"], mark["swept_to"])]
        untold = [await _tell_untold(connection, *stretch) for stretch in stretches]
        events = [await connection.fetchval(sql["owe_events"], *stretch) for stretch in stretches]
        invalidations = [await connection.fetchval(sql["owe_invalidations"], *stretch) for stretch in stretches]
        wake_ups = await self._wake(connection, oldest)
        await connection.execute(sql["move_mark"], mark["fresh_to"], mark["swept_to"])
        crash_point("reconcile.before_commit")
        return Mended(sum(events), sum(untold), sum(invalidations), wake_ups)

    async def _wake(self, connection: Connection, oldest: dict[str, timedelta]) -> int:
        after = timedelta(seconds=self._settings.lost_wake_up_seconds)
        sql = queries("reconcile")["owe_wake_ups"]
        return int(await connection.fetchval(sql, after, list(oldest), list(oldest.values())))

    async def _oldest_messages(self) -> dict[str, timedelta]:
        """How long the oldest message waits, by runtime. What runs in this process has no messages to lose."""
        found = {}
        for name, runtime in self._control.runtimes.items():
            if runtime.queue is not None:
                depth = await self._control.queue.depth(runtime.queue)
                found[name] = timedelta(seconds=depth.oldest_age_seconds)
            elif runtime.invoker == "in_process":
                found[name] = timedelta()
        return found


async def _tell_untold(connection: Connection, start: datetime, stop: datetime) -> int:
    """Committed partitions of which nobody was told: their events, as the task should have sent them."""
    sql = queries("reconcile")
    commits = {
        (row["dataset_uuid"], row["number"]): row
        for row in await connection.fetch(sql["commits_without_events"], start, stop)
    }
    if not commits:
        return 0
    datasets, numbers = transposed(list(commits), 2)
    told = [
        _row(commits[part["dataset_uuid"], part["number"]], part)
        for part in await connection.fetch(sql["partitions_of"], datasets, numbers)
    ]
    return int(await connection.fetchval(sql["tell"], *transposed(told, 13)))


def _row(commit: asyncpg.Record, part: asyncpg.Record) -> tuple[Any, ...]:
    whole = {"start": part["start"], "end": part["stop"] - 1} if part["start"] is not None else None
    scope = read_scope(**whole) if whole else read_scope(partition_key=part["partition_key"])
    event = Event(DatasetId(commit["dataset_uuid"]), DatasetVersion(commit["dataset_version"]), scope)
    told = NewEvent(event, event.id_from(TaskId(commit["task_id"])))
    return commit["org_id"], commit["task_id"], commit["attempt"], commit["number"], *told.columns
