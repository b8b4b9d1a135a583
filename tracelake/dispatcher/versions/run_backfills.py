"""Creates the work of backfills, a batch at a time, while their budget lasts and the queues of their jobs are short.

A batch and the place where the next one begins are one transaction: a Dispatcher that dies loses and repeats nothing;
the lock on the row makes sure that one replica at a time works on a backfill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

import asyncpg
import msgspec

from tracelake.dispatcher.events.new_events import transposed
from tracelake.dispatcher.maintenance.loop import Work
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.versions.catch_up import create_tasks
from tracelake.dispatcher.versions.compare import Read, list_reads
from tracelake.dispatcher.versions.show_backfills import BYTES, FEW_BYTES, FEW_REQUESTS, HOURS, REQUESTS, TASKS
from tracelake.dispatcher.versions.start_backfill import SourceOutput, missing_ranges, source_outputs
from tracelake.dispatcher.versions.units import FROM_THE_END, Place, Unit, UnitPage, last_unit, list_units
from tracelake.domain.ranges import Range, format_partition_key, split_aligned
from tracelake.domain.task import NEW, TaskState
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import LoopSettings
from tracelake.store.queries import Connection, Row, fetch_column, find_row, queries

BATCH = 1_000
STEP = 100_000
"""Blocks in one event of a manual source; events start and end at multiples of it."""
EVENTS_AT_ONCE = 10
SHORTLY = timedelta(seconds=2)
"""While a queue is long, it is looked at again after so long."""
COMPLETE = "complete"
SOON = timedelta(seconds=0.5)


class Backfill(Row, frozen=True):
    id: UUID
    org_id: UUID
    dag_name: str
    job_name: str | None
    start: int | None
    stop: int | None
    newest_first: bool
    again: bool
    tasks_left: int | None
    is_over: bool
    place: str
    created_at: datetime
    is_metered: bool
    """It has a budget of requests or bytes, which is known only when tasks have ended: few of them are open at once."""
    requests_left: int | None
    bytes_left: int | None
    most_requests: int | None
    """Of one task about data of the past since the backfill began; None: none has ended that used anything."""
    most_bytes: int | None

    @property
    def used_up(self) -> str | None:
        """Which budget, if one is."""
        left = {TASKS: self.tasks_left, REQUESTS: self.requests_left, BYTES: self.bytes_left}
        used = [reason for reason, number in left.items() if number is not None and number <= 0]
        return HOURS if self.is_over else next(iter(used), None)

    @property
    def too_little_is_left(self) -> str | None:
        """Of which budget, if what is left would not do for another task."""
        left = {FEW_REQUESTS: (self.requests_left, self.most_requests), FEW_BYTES: (self.bytes_left, self.most_bytes)}
        return next((reason for reason, amounts in left.items() if _tasks_within(*amounts) == 0), None)

    def open_at_most(self, most: int) -> int:
        """How many tasks may be open at once: each may use as much as the largest that has ended, and one tells."""
        if self.most_requests is None and self.most_bytes is None:
            return 1
        left = (self.requests_left, self.most_requests), (self.bytes_left, self.most_bytes)
        return min([most, *(tasks for amounts in left if (tasks := _tasks_within(*amounts)) is not None)])

    @property
    def span(self) -> Range | None:
        return None if self.start is None or self.stop is None else Range(self.start, self.stop)


class StoredPlace(msgspec.Struct, frozen=True):
    """The input of which the next batch is, by the names that a new version keeps; and where it begins there."""

    job: str = ""
    dataset: str = ""
    place: dict[str, Any] | None = None


@dataclass(frozen=True)
class RunBackfills(Work):
    pool: asyncpg.Pool
    after: AfterCommit
    settings: LoopSettings

    async def once(self) -> int:
        """A batch of the backfill that is due. 1 if there was one."""
        async with self.pool.acquire() as connection, connection.transaction():
            due = await find_row(connection, queries("backfills")["take_backfill"], Backfill)
            if due is None:
                return 0
            created = await self._continue(connection, due)
            crash_point("run_backfill.before_commit")
        crash_point("run_backfill.after_commit")
        self.after.outbox.notify()
        self.after.metrics.moved(NEW, TaskState.QUEUED, created)
        return 1

    async def next_due(self) -> float | None:
        seconds = await self.pool.fetchval(queries("backfills")["next_backfill"])
        return None if seconds is None else max(float(seconds), 0.0)

    async def _continue(self, connection: Connection, due: Backfill) -> int:
        if (reason := due.used_up or due.too_little_is_left) is not None:
            return await _stop(connection, due, reason, 0)
        room = await self._room(connection, due)
        if room <= 0:
            return await _postpone(connection, due, SOON)
        if due.job_name is not None and due.span is not None:
            outputs = await source_outputs(connection, due.org_id, due.dag_name, due.job_name)
            reads = await list_reads(connection, due.org_id, due.dag_name, due.job_name)
            if outputs and not reads:
                return await self._send_events(connection, due, due.span, outputs)
        return await self._create_tasks(connection, due, room)

    async def _create_tasks(self, connection: Connection, due: Backfill, room: int) -> int:
        stored = msgspec.json.decode(due.place, type=StoredPlace)
        reads = await list_reads(connection, due.org_id, due.dag_name, due.job_name)
        left = sorted((read for read in reads if read.takes_history and _order(read) >= _at(stored)), key=_order)
        if not left:
            return await _end(connection, due, COMPLETE, 0)
        read = left[0]
        if await self._is_full(connection, [read.job_id]):
            return await _postpone(connection, due)
        page = await _page(connection, due, read, stored if _order(read) == _at(stored) else StoredPlace(), room)
        if due.again:
            await _mark_again(connection, due, read, page.units)
        job = read.job_id, read.dataset_uuid, read.dataset_version
        created = await create_tasks(connection, *job, page.units, most=due.tasks_left, again=due.again, history=True)
        return await _advance(connection, due, read, page, created, is_last=len(left) == 1)

    async def _send_events(
        self, connection: Connection, due: Backfill, span: Range, outputs: Sequence[SourceOutput]
    ) -> int:
        jobs = await fetch_column(connection, queries("backfills")["jobs_of_dag"], due.org_id, due.dag_name)
        if await self._is_full(connection, jobs):
            return await _postpone(connection, due)
        events, blocks = list[tuple[Any, ...]](), 0
        for output in outputs:
            steps = [
                step for piece in await missing_ranges(connection, output, span) for step in split_aligned(piece, STEP)
            ]
            steps = (steps[::-1] if due.newest_first else steps)[: 1 if due.is_metered else EVENTS_AT_ONCE]
            events += [_event(due, output, step) for step in steps]
            blocks = max(blocks, sum(map(len, steps)))
        if not events:
            return await _end(connection, due, COMPLETE, 0)
        await connection.fetchval(
            queries("backfills")["store_source_events"], due.org_id, due.id, *transposed(events, 5)
        )
        await connection.execute(queries("backfills")["continue_backfill"], due.id, {}, blocks, timedelta())
        return 0

    async def _room(self, connection: Connection, due: Backfill) -> int:
        """How many tasks may be created now."""
        if not due.is_metered:
            return BATCH
        sql = queries("backfills")["count_open"]
        open_tasks = int(await connection.fetchval(sql, due.org_id, due.dag_name, due.id))
        return due.open_at_most(self.settings.metered_tasks) - open_tasks

    async def _is_full(self, connection: Connection, jobs: Sequence[UUID]) -> bool:
        most = self.settings.catch_up_queued
        return int(await connection.fetchval(queries("backfills")["count_queued"], jobs, most)) >= most


def _tasks_within(left: int | None, most: int | None) -> int | None:
    """How many tasks that use so much each; None: any number."""
    return left // most if left is not None and most else None


async def _page(connection: Connection, due: Backfill, read: Read, stored: StoredPlace, size: int) -> UnitPage:
    generation = read.dataset_uuid, read.dataset_version
    if read.makes_whole:
        return UnitPage(await last_unit(connection, *generation), None)
    place = msgspec.convert(stored.place, Place) if stored.place else _first_place(due)
    return await list_units(connection, *generation, place, size, within=due.span, newest=due.newest_first)


def _first_place(due: Backfill) -> Place:
    return FROM_THE_END if due.newest_first else Place()


async def _mark_again(connection: Connection, due: Backfill, read: Read, units: Sequence[Unit]) -> None:
    """What was processed since the backfill began is not processed again."""
    named = [(unit.partition_key, unit.cursor_value, unit.commit_number) for unit in units]
    sql = queries("backfills")["mark_again"]
    await connection.execute(sql, read.job_id, read.dataset_version, *transposed(named, 3), due.created_at)


async def _advance(
    connection: Connection, due: Backfill, read: Read, page: UnitPage, created: int, *, is_last: bool
) -> int:
    if due.tasks_left is not None and created >= due.tasks_left:
        return await _stop(connection, due, TASKS, created)
    if page.place is None and is_last:
        return await _end(connection, due, COMPLETE, created)
    # After the last page of an input, the place is behind it and before the next one.
    after = StoredPlace(read.job_name, str(read.dataset_uuid), asdict(page.place)) if page.place else _behind(read)
    place = msgspec.to_builtins(after)
    await connection.execute(queries("backfills")["continue_backfill"], due.id, place, created, timedelta())
    return created


async def _end(connection: Connection, due: Backfill, reason: str, created: int) -> int:
    await connection.execute(queries("backfills")["end_backfill"], due.id, reason, created)
    return created


async def _stop(connection: Connection, due: Backfill, reason: str, created: int) -> int:
    await connection.execute(queries("backfills")["stop_backfill"], due.id, reason, created)
    return created


async def _postpone(connection: Connection, due: Backfill, wait: timedelta = SHORTLY) -> int:
    place = msgspec.json.decode(due.place)
    await connection.execute(queries("backfills")["continue_backfill"], due.id, place, 0, wait)
    return 0


def _behind(read: Read) -> StoredPlace:
    return StoredPlace(read.job_name, f"{read.dataset_uuid}+")


def _order(read: Read) -> tuple[str, str]:
    return read.job_name, str(read.dataset_uuid)


def _at(stored: StoredPlace) -> tuple[str, str]:
    return stored.job, stored.dataset


def _event(due: Backfill, output: SourceOutput, step: Range) -> tuple[Any, ...]:
    own = uuid5(due.id, f"{output.dataset_uuid}:{format_partition_key(step)}")
    return own, output.dataset_uuid, output.dataset_version, step.start, step.stop
