"""A user triggers a `manual` source: a task of it, or one event for each of its outputs. Next: step 3.

It is a task where the operator does work, and only events where it forwards them, as `noop` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.dispatcher.events.new_events import NewEvent, transposed
from tracelake.dispatcher.flow.pause_job import FoundJob
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.fire_task import FiredTask, find_task, paused, scope_fields, store_task
from tracelake.dispatcher.sources.operators import makes_task
from tracelake.domain.event import Event, Scope, read_scope, scope_key
from tracelake.domain.ids import DatasetId, DatasetVersion, TaskId
from tracelake.errors import Conflict, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.jobs import JobCache, StoredJob
from tracelake.store.queries import Connection, Row, fetch_rows, find_row, queries

OTHER_CONTENTS = "this request has been made before, with other contents"


@dataclass(frozen=True)
class Triggered:
    event_ids: tuple[UUID, ...]
    """By output."""
    created: bool
    """False: the request was a repeated one."""
    task_id: UUID | None = None
    """The task of the source, if its operator does work."""


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
        task = await find_task(connection, org_id, dag, job, request_id)
        if before:
            found = _same_as_before(before, (dag, job, scope_key(scope)))
        elif task is not None:
            found = _same_task(task, scope)
        else:
            source = await _manual_source(connection, jobs, org_id, dag, job)
            found = await _store(connection, org_id, source, scope, request_id)
        crash_point("trigger.before_commit")
    crash_point("trigger.after_commit")
    after.outbox.notify()
    if found.created and found.event_ids:
        after.metrics.events.labels(str(org_id), dag, job).inc(len(found.event_ids))
    return found


def _same_as_before(events: Sequence[TriggeredEvent], asked: tuple[str, str, str]) -> Triggered:
    if any((event.dag_name, event.job_name, event.scope) != asked for event in events):
        raise Conflict(OTHER_CONTENTS, where="/request_id", hint="a new request has a new id")
    return Triggered(tuple(event.id for event in events), created=False)


def _same_task(task: FiredTask, scope: Scope) -> Triggered:
    if task.scope != scope_fields(scope):
        raise Conflict(OTHER_CONTENTS, where="/request_id", hint="a new request has a new id")
    return Triggered((), created=False, task_id=task.id)


async def _manual_source(connection: Connection, jobs: JobCache, org_id: UUID, dag: str, job: str) -> StoredJob:
    source = await find_row(connection, queries("sources")["find_job"], FoundJob, org_id, dag, job)
    if source is None:
        raise NotFound(f"no DAG {dag!r}", where="dag")
    if source.active is None:
        raise Conflict(f"no version of DAG {dag!r} is active", where="dag", hint="activate one")
    if source.job_id is None:
        raise NotFound(f"the active version of DAG {dag!r} has no job {job!r}", where="job")
    if source.kind != "manual":
        what = "reacts to its inputs" if source.kind is None else f"is a source of kind {source.kind}"
        raise Conflict(f"job {job!r} {what}", where="job", hint="only a source of kind manual is triggered")
    if source.paused:
        raise paused(dag, job)
    return await jobs.through(connection).get(source.job_id)


async def _store(connection: Connection, org_id: UUID, job: StoredJob, scope: Scope, request_id: UUID) -> Triggered:
    if makes_task(job.operator):
        task = await store_task(connection, org_id, job.id, request_id, scope_fields(scope))
        return Triggered((), created=True, task_id=task)
    events = [
        Event(DatasetId(output.dataset_uuid), DatasetVersion(output.dataset_version), scope) for output in job.outputs
    ]
    new = [NewEvent(event, event.id_from(TaskId(request_id))) for event in events]
    columns = transposed([event.columns for event in new], 9)
    await connection.execute(queries("sources")["store_trigger"], org_id, request_id, *columns)
    return Triggered(tuple(event.event_id for event in new), created=True)
