"""Compares what was committed with what must follow from it, and queues again what was lost.

Everything that follows is written to the outbox in the transaction that causes it, so there should be nothing to find.
If there is (a row deleted by hand, a queue that lost messages, a bug), it is queued again: by an outbox entry, or by an
event under the id that it would have had. So if it was only late, nothing is done twice.

A pass compares what is new since the last one and a slice of the past. One replica at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import structlog

from tracelake.dispatcher.events.new_events import NewEvent, transposed
from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.dispatcher.signal import Signal
from tracelake.domain.event import Event, read_scope
from tracelake.domain.flow.pressure import Priority
from tracelake.domain.flow.tiers import queue_of_tier
from tracelake.domain.ids import DatasetId, DatasetVersion, TaskId
from tracelake.ports import Queue
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import LoopSettings, RuntimeSettings
from tracelake.store.queries import Connection, Row, fetch_rows, find_row, queries

log = structlog.get_logger()

MARGIN = timedelta(minutes=5)
"""A row carries the time at which its transaction began, and becomes visible up to so much later."""

Oldest = dict[tuple[str, Priority], timedelta]


class ComparedTimes(Row, frozen=True):
    fresh_from: datetime
    fresh_to: datetime
    swept_from: datetime
    swept_to: datetime


class Commit(Row, frozen=True):
    dataset_uuid: UUID
    number: int
    org_id: UUID
    dataset_version: UUID
    task_id: UUID
    attempt: int


class UnroutedPartition(Row, frozen=True):
    dataset_uuid: UUID
    number: int
    partition_key: str
    start: int | None
    stop: int | None


@dataclass(frozen=True)
class Repairs:
    """How much of each kind was queued again."""

    events: int = 0
    missing_events: int = 0
    invalidations: int = 0
    wake_ups: int = 0

    @property
    def total(self) -> int:
        return self.events + self.missing_events + self.invalidations + self.wake_ups


@dataclass(frozen=True)
class Reconciler(Periodic):
    pool: asyncpg.Pool
    queue: Queue
    runtimes: Mapping[str, RuntimeSettings]
    outbox: Signal
    settings: LoopSettings

    async def once(self) -> int:
        repairs = await self.repair()
        crash_point("reconcile.after_commit")
        if repairs.total:
            log.warning("lost work was queued again", **vars(repairs))
            self.outbox.notify()
        return repairs.total

    async def repair(self) -> Repairs:
        interval = timedelta(seconds=self.settings.reconcile_seconds)
        if not await self.pool.fetchval(queries("reconcile")["is_due"], interval):
            return Repairs()
        oldest = await self._oldest_messages()  # before the transaction: a queue may be slow
        async with self.pool.acquire() as connection, connection.transaction():
            mark = await self._lock_mark(connection, interval)
            return Repairs() if mark is None else await self._repair(connection, mark, oldest)

    async def _lock_mark(self, connection: Connection, interval: timedelta) -> ComparedTimes | None:
        sql = queries("reconcile")
        length = timedelta(seconds=self.settings.reconcile_slice_seconds)
        grace = timedelta(seconds=self.settings.reconcile_grace_seconds)
        await connection.execute(sql["ensure_mark"])
        return await find_row(connection, sql["lock_mark"], ComparedTimes, interval, length, grace, MARGIN)

    async def _repair(self, connection: Connection, mark: ComparedTimes, oldest: Oldest) -> Repairs:
        sql = queries("reconcile")
        periods = [(mark.fresh_from, mark.fresh_to), (mark.swept_from, mark.swept_to)]
        missing = [await _insert_missing_events(connection, *period) for period in periods]
        events = [await connection.fetchval(sql["route_lost_events"], *period) for period in periods]
        invalidations = [await connection.fetchval(sql["route_lost_invalidations"], *period) for period in periods]
        wake_ups = await self._republish_wake_ups(connection, oldest)
        await connection.execute(sql["move_mark"], mark.fresh_to, mark.swept_to)
        crash_point("reconcile.before_commit")
        return Repairs(sum(events), sum(missing), sum(invalidations), wake_ups)

    async def _republish_wake_ups(self, connection: Connection, oldest: Oldest) -> int:
        after = timedelta(seconds=self.settings.lost_wake_up_seconds)
        runtimes, tiers = [runtime for runtime, _ in oldest], [str(tier) for _, tier in oldest]
        sql = queries("reconcile")["republish_wake_ups"]
        return int(await connection.fetchval(sql, after, runtimes, tiers, list(oldest.values())))

    async def _oldest_messages(self) -> Oldest:
        """The age of the oldest message by runtime and tier. Tasks that run in this process have none to lose."""
        ages: Oldest = {}
        for name, runtime in self.runtimes.items():
            for tier in Priority:
                if runtime.queue is not None:
                    depth = await self.queue.depth(queue_of_tier(runtime.queue, tier))
                    ages[name, tier] = timedelta(seconds=depth.oldest_age_seconds)
                elif runtime.invoker == "in_process":
                    ages[name, tier] = timedelta()
        return ages


async def _insert_missing_events(connection: Connection, start: datetime, stop: datetime) -> int:
    """Events of commits that have none, as their task should have sent them."""
    sql = queries("reconcile")
    rows = await fetch_rows(connection, sql["list_commits_without_events"], Commit, start, stop)
    commits = {(commit.dataset_uuid, commit.number): commit for commit in rows}
    if not commits:
        return 0
    partitions = await fetch_rows(connection, sql["list_partitions"], UnroutedPartition, *transposed(list(commits), 2))
    events = [_event_columns(commits[part.dataset_uuid, part.number], part) for part in partitions]
    return int(await connection.fetchval(sql["insert_events"], *transposed(events, 13)))


def _event_columns(commit: Commit, partition: UnroutedPartition) -> tuple[Any, ...]:
    if partition.start is None or partition.stop is None:
        scope = read_scope(partition_key=partition.partition_key)
    else:
        scope = read_scope(start=partition.start, end=partition.stop - 1)
    event = Event(DatasetId(commit.dataset_uuid), DatasetVersion(commit.dataset_version), scope)
    new = NewEvent(event, event.id_from(TaskId(commit.task_id)))
    return commit.org_id, commit.task_id, commit.attempt, commit.number, *new.columns
