"""A user triggers a `manual` source: one event for each of its outputs. Next: step 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.events.new_events import NewEvent, transposed
from tracelake.domain.event import Event, Scope, read_scope, scope_key
from tracelake.domain.ids import DatasetId, DatasetVersion, TaskId
from tracelake.errors import Conflict, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.jobs import Job
from tracelake.store.queries import queries


@dataclass(frozen=True)
class Triggered:
    event_ids: tuple[UUID, ...]
    """By output."""
    created: bool
    """False: the request was a repeated one."""


async def trigger(
    control: Control,
    org_id: UUID,
    dag: str,
    job: str,
    *,
    cursor: int | None = None,
    partition: str | None = None,
    start: int | None = None,
    end: int | None = None,
    request_id: UUID,
) -> Triggered:
    """The same request again gives the same events; with other contents it is a conflict."""
    scope = read_scope(cursor=cursor, partition_key=partition, start=start, end=end)
    async with control.pool.acquire() as connection, connection.transaction():
        await connection.execute(queries("sources")["lock_request"], request_id, org_id)
        before = await connection.fetch(queries("sources")["events_of_request"], org_id, request_id)
        if before:
            found = _same_as_before(before, (dag, job, scope_key(scope)))
        else:
            source = await _manual_source(control, connection, org_id, dag, job)
            found = await _store(connection, org_id, source, scope, request_id)
        crash_point("trigger.before_commit")
    crash_point("trigger.after_commit")
    control.outbox_signal.notify()
    if found.created:
        control.metrics.events.labels(dag, job).inc(len(found.event_ids))
    return found


def _same_as_before(rows: Sequence[asyncpg.Record], asked: tuple[str, str, str]) -> Triggered:
    if any((row["dag_name"], row["job_name"], row["scope"]) != asked for row in rows):
        raise Conflict(
            "this request has been made before, with other contents",
            where="/request_id",
            hint="a new request has a new id",
        )
    return Triggered(tuple(row["id"] for row in rows), created=False)


async def _manual_source(
    control: Control, connection: asyncpg.pool.PoolConnectionProxy, org_id: UUID, dag: str, job: str
) -> Job:
    row = await connection.fetchrow(queries("sources")["find_job"], org_id, dag, job)
    if row is None:
        raise NotFound(f"no DAG {dag!r}", where="dag")
    if row["active"] is None:
        raise Conflict(f"no version of DAG {dag!r} is active", where="dag", hint="activate one")
    if row["job_id"] is None:
        raise NotFound(f"the active version of DAG {dag!r} has no job {job!r}", where="job")
    if row["kind"] != "manual":
        what = "reacts to its inputs" if row["kind"] is None else f"is a source of kind {row['kind']}"
        raise Conflict(f"job {job!r} {what}", where="job", hint="only a source of kind manual is triggered")
    return await control.jobs.through(connection).get(row["job_id"])


async def _store(
    connection: asyncpg.pool.PoolConnectionProxy, org_id: UUID, job: Job, scope: Scope, request_id: UUID
) -> Triggered:
    events = [
        Event(DatasetId(output.dataset_uuid), DatasetVersion(output.dataset_version), scope) for output in job.outputs
    ]
    new = [NewEvent(event, event.id_from(TaskId(request_id))) for event in events]
    columns = transposed([event.columns for event in new], 9)
    await connection.execute(queries("sources")["store_trigger"], org_id, request_id, *columns)
    return Triggered(tuple(event.event_id for event in new), created=True)
