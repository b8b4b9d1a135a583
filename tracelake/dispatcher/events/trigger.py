"""A user triggers a `manual` source: one event for each of its outputs. Next: step 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.dispatcher.events.new_events import NewEvent, transposed
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.pause import SourceJob
from tracelake.domain.event import Event, Scope, read_scope, scope_key
from tracelake.domain.ids import DatasetId, DatasetVersion, TaskId
from tracelake.errors import Conflict, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.jobs import Job, JobCache
from tracelake.store.queries import Connection, Row, fetch_rows, find_row, queries


@dataclass(frozen=True)
class Triggered:
    event_ids: tuple[UUID, ...]
    """By output."""
    created: bool
    """False: the request was a repeated one."""


class TriggeredEvent(Row, frozen=True):
    id: UUID
    scope: str
    dag_name: str
    job_name: str


async def trigger(
    pool: asyncpg.Pool,
    after: AfterCommit,
    org_id: UUID,
    dag: str,
    job: str,
    *,
    jobs: JobCache,
    cursor: int | None = None,
    partition: str | None = None,
    start: int | None = None,
    end: int | None = None,
    request_id: UUID,
) -> Triggered:
    """The same request again gives the same events; with other contents it is a conflict."""
    scope = read_scope(cursor=cursor, partition_key=partition, start=start, end=end)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(queries("sources")["lock_request"], request_id, org_id)
        sql = queries("sources")["events_of_request"]
        before = await fetch_rows(connection, sql, TriggeredEvent, org_id, request_id)
        if before:
            found = _same_as_before(before, (dag, job, scope_key(scope)))
        else:
            source = await _manual_source(connection, jobs, org_id, dag, job)
            found = await _store(connection, org_id, source, scope, request_id)
        crash_point("trigger.before_commit")
    crash_point("trigger.after_commit")
    after.outbox.notify()
    if found.created:
        after.metrics.events.labels(dag, job).inc(len(found.event_ids))
    return found


def _same_as_before(events: Sequence[TriggeredEvent], asked: tuple[str, str, str]) -> Triggered:
    if any((event.dag_name, event.job_name, event.scope) != asked for event in events):
        raise Conflict(
            "this request has been made before, with other contents",
            where="/request_id",
            hint="a new request has a new id",
        )
    return Triggered(tuple(event.id for event in events), created=False)


async def _manual_source(connection: Connection, jobs: JobCache, org_id: UUID, dag: str, job: str) -> Job:
    source = await find_row(connection, queries("sources")["find_job"], SourceJob, org_id, dag, job)
    if source is None:
        raise NotFound(f"no DAG {dag!r}", where="dag")
    if source.active is None:
        raise Conflict(f"no version of DAG {dag!r} is active", where="dag", hint="activate one")
    if source.job_id is None:
        raise NotFound(f"the active version of DAG {dag!r} has no job {job!r}", where="job")
    if source.kind != "manual":
        what = "reacts to its inputs" if source.kind is None else f"is a source of kind {source.kind}"
        raise Conflict(f"job {job!r} {what}", where="job", hint="only a source of kind manual is triggered")
    return await jobs.through(connection).get(source.job_id)


async def _store(connection: Connection, org_id: UUID, job: Job, scope: Scope, request_id: UUID) -> Triggered:
    events = [
        Event(DatasetId(output.dataset_uuid), DatasetVersion(output.dataset_version), scope) for output in job.outputs
    ]
    new = [NewEvent(event, event.id_from(TaskId(request_id))) for event in events]
    columns = transposed([event.columns for event in new], 9)
    await connection.execute(queries("sources")["store_trigger"], org_id, request_id, *columns)
    return Triggered(tuple(event.event_id for event in new), created=True)
