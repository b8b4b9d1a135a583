"""Pauses jobs upstream of a queue that is too long or too old, and releases what waited when it is short again.

The pauses are derived from the queues in every pass (`domain/flow/pressure.py`), so none can be left over: whatever was
lost, the next pass sets them right. Routing holds what would become tasks of a paused job (`store/sql/route.sql`,
`complete.sql`); a pass releases it in order, a batch for each job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import structlog

from tracelake.dispatcher.dags.catalog import operators
from tracelake.dispatcher.signal import AfterCommit
from tracelake.domain.flow.pressure import Load, Priority, Threshold, Trip, TripKey, pauses, trips
from tracelake.domain.ids import JobId
from tracelake.domain.task import NEW, TaskState
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import FlowSettings
from tracelake.store.queries import Connection, Row, fetch_row, fetch_rows, queries

log = structlog.get_logger()


class JobLoad(Row, frozen=True):
    job_id: UUID
    depth: int
    oldest_seconds: float
    max_depth: int | None
    max_age_seconds: float | None
    resume_depth: int | None
    resume_age_seconds: float | None


class OpenCause(Row, frozen=True):
    queue: UUID
    threshold: str
    priority: str


class JobEdge(Row, frozen=True):
    producer: UUID
    consumer: UUID


class PauseChanges(Row, frozen=True):
    opened: int
    ended: int


class Released(Row, frozen=True):
    released: int
    tasks: int


@dataclass(frozen=True)
class ApplyPressure:
    pool: asyncpg.Pool
    after: AfterCommit
    settings: FlowSettings

    async def once(self) -> int:
        """How much was released: while there is more, the next pass follows at once."""
        if not await self.pool.fetchval(queries("flow")["is_needed"]):
            return 0
        async with self.pool.acquire() as connection, connection.transaction():
            if not await connection.fetchval(queries("flow")["try_lock"]):
                return 0
            changes = await _set_pauses(connection)
            await connection.fetchval(queries("flow")["move_held"], None, None)
            flushed = await connection.fetchval(queries("flow")["flush"], _collecting())
            sql = queries("flow")["release_held"]
            released = await fetch_row(connection, sql, Released, self.settings.release_queue_depth)
            crash_point("apply_pressure.before_commit", when=changes.opened or changes.ended or released.released)
        crash_point("apply_pressure.after_commit", when=changes.opened or changes.ended or released.released)
        self._notify(changes, released)
        if flushed:
            self.after.metrics.moved(NEW, TaskState.QUEUED, flushed)
            self.after.outbox.notify()
        return released.released

    async def next_due(self) -> float | None:
        return None

    def _notify(self, changes: PauseChanges, released: Released) -> None:
        if changes.opened or changes.ended:
            log.info("backpressure changed", paused=changes.opened, resumed=changes.ended)
            self.after.sources.notify()
        if changes.ended:
            self.after.outbox.notify()  # tasks of sources that were fired meanwhile are woken
        if changes.opened:
            self.after.stops.notify()
        if released.tasks:
            self.after.metrics.moved(NEW, TaskState.QUEUED, released.tasks)
            self.after.outbox.notify()


def _collecting() -> list[str]:
    """Operators that wait until what they collect is complete."""
    return [name for name, spec in operators().items() if spec.flushes]


async def _set_pauses(connection: Connection) -> PauseChanges:
    sql = queries("flow")
    loads = await fetch_rows(connection, sql["list_loads"], JobLoad)
    causes = await fetch_rows(connection, sql["list_open_causes"], OpenCause)
    reached = trips(map(_load, loads), {_key(cause) for cause in causes})
    if not reached and not causes:
        return PauseChanges(0, 0)
    edges = await fetch_rows(connection, sql["list_edges"], JobEdge) if reached else []
    found = pauses(reached, ((JobId(edge.producer), JobId(edge.consumer)) for edge in edges))
    rows = [row for (job, priority), why in found.items() for row in _rows(job, priority, why)]
    columns = zip(*rows, strict=True) if rows else ((),) * 6
    return await fetch_row(connection, sql["set_pauses"], PauseChanges, *map(list, columns))


def _load(row: JobLoad) -> Load:
    return Load(
        JobId(row.job_id),
        row.depth,
        row.oldest_seconds,
        row.max_depth,
        row.max_age_seconds,
        row.resume_depth,
        row.resume_age_seconds,
    )


def _key(cause: OpenCause) -> TripKey:
    return TripKey(JobId(cause.queue), Threshold(cause.threshold), Priority(cause.priority))


def _rows(job: JobId, priority: Priority, causes: Iterable[Trip]) -> Iterable[tuple[object, ...]]:
    for trip in causes:
        yield job, str(priority), str(trip.threshold), trip.queue, trip.limit, trip.value
