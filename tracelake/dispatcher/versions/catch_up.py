"""Catches up: creates tasks for what jobs of active versions lack of their inputs, in batches.

A job lacks the current partitions of the generation that it reads, with their commits, except those that it has
processed, whichever version of the DAG ran it. Each input of each job has a row in `catch_ups`, written in the
transaction that activates its version: the loop passes over its units, a batch in each transaction, and stores how
far it came. A pass is repeated every few hours, so that work which was lost for any reason is found too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from tracelake.dispatcher.maintenance.loop import Work
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.tasks.completion.commit_outputs import lock_commits
from tracelake.dispatcher.versions.reuse_outputs import Reused, ReuseOutputs
from tracelake.dispatcher.versions.units import Place, Unit, columns, last_unit, list_units
from tracelake.domain.task import NEW, TaskState
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import LoopSettings
from tracelake.store.queries import Connection, Queryable, Row, fetch_row, find_row, queries

BATCH = 5_000
"""Partitions or events that are compared in one transaction."""
REUSED_AT_ONCE = 100
"""The same, where tasks may be completed at once: other commits to their datasets wait meanwhile."""
OVERLAP = timedelta(seconds=60)
"""A transaction that began before an activation may commit an update for the former version until so much later."""


WHILE_BUILDING = timedelta(seconds=1)
"""After so long the inputs of a release that is being built are compared again."""


class ComparedInput(Row, frozen=True):
    """An input of a job, and how far its comparison has come."""

    job_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID | None
    """None: no version serves the input now."""
    makes_whole: bool | None
    stage: str
    after_start: int
    after_key: str
    after_time: datetime
    after_event: UUID
    soon: bool
    """The version was activated only just: transactions of before may still commit."""
    settled_at: datetime
    builds: bool
    """Of a release that is being built: no event tells its jobs of new data."""
    output_datasets: list[UUID]
    may_reuse: bool
    """Tasks of another version may have written what those of this one would write."""

    @property
    def place(self) -> Place:
        return Place(self.stage, self.after_start, self.after_key, self.after_time, self.after_event)


@dataclass(frozen=True)
class Created:
    """What a batch has created."""

    count: int
    reused: Reused | None = None
    """Of these tasks, those that were completed with the outputs of others."""


@dataclass(frozen=True)
class CatchUp(Work):
    pool: asyncpg.Pool
    after: AfterCommit
    settings: LoopSettings
    reuse: ReuseOutputs | None = None
    """None: every task that is created runs."""

    async def once(self) -> int:
        """A batch of the comparison that is due. 1 if there was one."""
        async with self.pool.acquire() as connection, connection.transaction():
            sql = queries("catch_up")
            due = await find_row(connection, sql["take"], ComparedInput, self.settings.catch_up_queued, OVERLAP)
            if due is None:
                await connection.execute(sql["forget"])
                await _clear_behind(connection)
                return 0
            created = await self._compare(connection, due)
            crash_point("catch_up.before_commit")
        crash_point("catch_up.after_commit")
        if created.count:
            self.after.outbox.notify()
            self.after.metrics.moved(NEW, TaskState.QUEUED, created.count)
        if self.reuse is not None and created.reused is not None:
            self.reuse.announce(created.reused)
        return 1

    async def next_due(self) -> float | None:
        seconds = await self.pool.fetchval(queries("catch_up")["next_due"])
        # Due, and yet it was not taken: the queue of its job is long. It is looked at again at the next beat.
        return float(seconds) if seconds is not None and seconds > 0 else None

    async def _compare(self, connection: Connection, due: ComparedInput) -> Created:
        if due.dataset_version is None:
            return await self._end(connection, due, Created(0))
        generation = due.dataset_uuid, due.dataset_version
        if due.makes_whole:
            units = await last_unit(connection, *generation)
            return await self._end(connection, due, await self._create(connection, due, due.dataset_version, units))
        most = REUSED_AT_ONCE if self.reuse is not None and due.may_reuse else BATCH
        page = await list_units(connection, *generation, due.place, most)
        created = await self._create(connection, due, due.dataset_version, page.units)
        if page.place is None:
            return await self._end(connection, due, created)
        place = (
            page.place.stage,
            page.place.after_start,
            page.place.after_key,
            page.place.after_time,
            page.place.after_event,
        )
        named = due.job_id, due.dataset_uuid
        await connection.execute(queries("catch_up")["continue_pass"], *named, *place, created.count)
        return created

    async def _create(
        self, connection: Connection, due: ComparedInput, version: UUID, units: Sequence[Unit]
    ) -> Created:
        """Tasks; those whose outputs another task has written are completed with them at once."""
        read = due.job_id, due.dataset_uuid, version
        if self.reuse is None or not due.may_reuse or not units:
            return Created(await create_tasks(connection, *read, units))
        # Before the tasks are inserted, as completions do: neither waits for the other.
        await lock_commits(connection, due.output_datasets)
        held = await create_held_tasks(connection, *read, units)
        reused = await self.reuse.close(connection, held)
        await connection.execute(queries("reuse")["wake_left"], held)
        return Created(len(held), reused)

    async def _end(self, connection: Connection, due: ComparedInput, created: Created) -> Created:
        again = WHILE_BUILDING if due.builds else timedelta(seconds=self.settings.catch_up_seconds)
        next_at = due.settled_at if due.soon and not due.builds else None
        named = due.job_id, due.dataset_uuid
        await connection.execute(queries("catch_up")["end_pass"], *named, next_at, again, created.count)
        return created


async def _clear_behind(connection: Connection) -> None:
    """DAGs that have caught up; then those that read them."""
    while await connection.fetchval(queries("behind")["clear_behind"]):
        pass


async def request_catch_up(connection: Connection, org_id: UUID, former: UUID | None, version_id: UUID) -> None:
    """In the transaction of an activation: its jobs, and those that read its datasets, are compared from the start."""
    sql = queries("catch_up")
    await connection.execute(sql["mark_read_otherwise"], org_id, former, version_id)
    await connection.execute(sql["request_all"], org_id, version_id)
    await connection.execute(queries("behind")["mark_behind"], org_id, version_id)
    await connection.execute(sql["route_missed_invalidations"], org_id, version_id)


async def create_tasks(
    database: Queryable,
    job: UUID,
    dataset: UUID,
    version: UUID,
    units: Sequence[Unit],
    *,
    most: int | None = None,
    again: bool = False,
    history: bool = False,
) -> int:
    """Tasks for those units that the job has not processed, and that have none; how many.

    At most `most`; with `again` also where a task failed or was canceled for good. `history`: all of them are of the
    past; else those are that were made before the version was activated.
    """
    if not units:
        return 0
    sql, values = queries("catch_up")["create_lacking"], (*columns(units), most, again, history, False)
    return int(await database.fetchval(sql, job, dataset, version, *values))


class CreatedTasks(Row, frozen=True):
    created: int
    held: list[UUID] | None


async def create_held_tasks(
    connection: Connection, job: UUID, dataset: UUID, version: UUID, units: Sequence[Unit]
) -> list[UUID]:
    """The same, and none of them is woken."""
    sql = queries("catch_up")["create_lacking"]
    values = job, dataset, version, *columns(units), None, False, False, True
    return (await fetch_row(connection, sql, CreatedTasks, *values)).held or []
