"""Step 2 of one event: fenced; event rows and `route_event` entries in one transaction.

Next: `outbox/drain.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import asyncpg

from tracelake.capability.claims import Claims
from tracelake.dispatcher.events.new_events import NewEvent, read_events, require_writable, transposed
from tracelake.dispatcher.signal import AfterCommit
from tracelake.domain.event import PartitionScope, RangeScope, partition_key, read_partition, scope_key
from tracelake.domain.ids import DatasetId, DatasetVersion, invalidation_id
from tracelake.errors import InvalidRequest
from tracelake.runtime.crash_points import crash_point
from tracelake.store.jobs import JobCache
from tracelake.store.queries import Connection, queries
from tracelake.store.tasks import lock_open
from tracelake.wire.task.outputs import EventsAnswer, EventsRequest, InvalidationBody


async def accept_events(
    database: asyncpg.Pool, jobs: JobCache, after: AfterCommit, request: EventsRequest, claims: Claims
) -> EventsAnswer:
    events = read_events(request.events, claims)
    scopes = read_invalidations(request.invalidations, claims)
    async with database.acquire() as connection, connection.transaction():
        task = await lock_open(connection, request)
        accepted = new = await store_events(connection, claims, events)
        accepted += await store_invalidations(connection, claims, request.invalidations, scopes)
        if request.state is not None:
            await connection.execute(queries("events")["save_state"], task.org_id, task.job_id, request.state)
        if events or scopes or request.state is not None:
            # A source that reports anything has reset its outputs before, if it had to.
            await connection.execute(queries("events")["acknowledge_bootstrap"], task.job_id)
        crash_point("accept_event.before_commit")
    crash_point("accept_event.after_commit")
    after.outbox.notify()
    if new:
        job = await jobs.get(task.job_id)
        after.metrics.events.labels(str(job.org_id), job.dag_name, job.name).inc(new)
    return EventsAnswer(accepted=accepted)


async def store_events(connection: Connection, claims: Claims, events: Sequence[NewEvent]) -> int:
    """How many were new."""
    if not events:
        return 0
    columns = transposed([event.columns for event in events], 9)
    sql = queries("events")["store_events"]
    return int(await connection.fetchval(sql, claims.org_id, claims.task_id, claims.attempt, *columns))


def read_invalidations(bodies: Sequence[InvalidationBody], claims: Claims) -> list[PartitionScope]:
    scopes = []
    for index, body in enumerate(bodies):
        require_writable(body.dataset_uuid, body.dataset_version, f"/invalidations/{index}", claims)
        if not body.reason.strip():
            raise InvalidRequest("an invalidation needs a reason", where=f"/invalidations/{index}/reason")
        try:
            scopes.append(read_partition(partition_key=body.partition_key, start=body.start, end=body.end))
        except InvalidRequest as wrong:
            where = f"/invalidations/{index}{wrong.where or '/start'}"
            raise InvalidRequest(wrong.message, where=where, hint=wrong.hint) from None
    return scopes


async def store_invalidations(
    connection: Connection,
    claims: Claims,
    bodies: Sequence[InvalidationBody],
    scopes: Sequence[PartitionScope],
) -> int:
    new = 0
    for body, scope in zip(bodies, scopes, strict=True):
        cause = f"task:{claims.task_id}:{body.reason}"
        if body.cause is not None:  # as a list, because either text may hold any separator
            cause = json.dumps(["task", str(claims.task_id), body.cause, body.reason])
        key, span = scope_key(scope), scope.span if isinstance(scope, RangeScope) else None
        new += await connection.fetchval(
            queries("events")["store_invalidation"],
            invalidation_id(DatasetId(body.dataset_uuid), DatasetVersion(body.dataset_version), key, cause),
            claims.org_id,
            body.dataset_uuid,
            body.dataset_version,
            span.start if span else None,
            span.stop if span else None,
            body.reason,
            None,
            claims.task_id,
            claims.attempt,
            None,
            partition_key(scope),
        )
    return new
