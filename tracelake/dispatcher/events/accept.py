"""Step 2 of one event: fenced; event rows and `route_event` entries in one transaction.

Next: `outbox/drain.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from tracelake.capability.claims import Claims
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.events.new_events import NewEvent, read_events, require_writable, transposed
from tracelake.dispatcher.tasks.count_completions import count_events
from tracelake.domain.event import RangeScope, scope_key
from tracelake.domain.ids import DatasetId, DatasetVersion, invalidation_id
from tracelake.domain.ranges import InvalidRange, Range, inclusive
from tracelake.errors import InvalidRequest, LeaseLost
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.message import Fenced
from tracelake.wire.output_messages import EventsAnswer, EventsRequest, InvalidationBody


async def accept_events(control: Control, request: EventsRequest, claims: Claims) -> EventsAnswer:
    told = read_events(request.events, claims)
    spans = read_invalidations(request.invalidations, claims)
    async with control.hot.acquire() as connection, connection.transaction():
        row = await lock_fenced(connection, request)
        accepted = new = await store_events(connection, claims, told, {})
        accepted += await store_invalidations(connection, claims, request.invalidations, spans, None)
        if request.state is not None:
            await connection.execute(queries("complete")["save_state"], row["org_id"], row["job_id"], request.state)
        if told or spans or request.state is not None:
            await acknowledge_bootstrap(connection, row["job_id"])
        crash_point("accept_event.before_commit")
    crash_point("accept_event.after_commit")
    control.outbox_signal.notify()
    if new:
        await count_events(control, row["job_id"], new)
    return EventsAnswer(accepted=accepted)


async def lock_fenced(connection: asyncpg.pool.PoolConnectionProxy, request: Fenced) -> asyncpg.Record:
    """The gate of every fenced write outside a batch: the row, locked, or LeaseLost."""
    sql = queries("complete")["lock_fenced"]
    row = await connection.fetchrow(sql, request.task_id, request.attempt, request.lease_token)
    if row is None:
        raise LeaseLost("another attempt is the current one", where="/attempt", hint="stop, and report nothing")
    if not row["open"]:
        raise LeaseLost(f"the attempt is over: the task is {row['status']}", where="/lease_token")
    return row


async def acknowledge_bootstrap(connection: asyncpg.pool.PoolConnectionProxy, job_id: UUID) -> None:
    """Whoever tells of something has reset its outputs before, if it was asked to: it is not asked again."""
    await connection.execute(queries("complete")["acknowledge_bootstrap"], job_id)


async def store_events(
    connection: asyncpg.pool.PoolConnectionProxy, claims: Claims, told: Sequence[NewEvent], commits: dict[UUID, int]
) -> int:
    """How many were new. `commits`: the commit of each dataset that this call made, if it made one."""
    if not told:
        return 0
    rows: list[tuple[Any, ...]] = [(*event.columns, commits.get(event.event.dataset)) for event in told]
    columns = transposed(rows, 10)
    sql = queries("events")["store_events"]
    return int(await connection.fetchval(sql, claims.org_id, claims.task_id, claims.attempt, *columns))


def read_invalidations(bodies: Sequence[InvalidationBody], claims: Claims) -> list[Range]:
    spans = []
    for index, body in enumerate(bodies):
        require_writable(body.dataset_uuid, body.dataset_version, f"/invalidations/{index}", claims)
        if not body.reason.strip():
            raise InvalidRequest("an invalidation says its reason", where=f"/invalidations/{index}/reason")
        try:
            spans.append(inclusive(body.start, body.end))
        except InvalidRange as wrong:
            raise InvalidRequest(wrong.message, where=f"/invalidations/{index}/start", hint=wrong.hint) from None
    return spans


async def store_invalidations(
    connection: asyncpg.pool.PoolConnectionProxy,
    claims: Claims,
    bodies: Sequence[InvalidationBody],
    spans: Sequence[Range],
    commit: int | None,
) -> int:
    new = 0
    for body, span in zip(bodies, spans, strict=True):
        cause = f"task:{claims.task_id}:{body.reason}"
        if body.cause is not None:  # as a list, because either text may hold any separator
            cause = json.dumps(["task", str(claims.task_id), body.cause, body.reason])
        key = scope_key(RangeScope(span))
        new += await connection.fetchval(
            queries("events")["store_invalidation"],
            invalidation_id(DatasetId(body.dataset_uuid), DatasetVersion(body.dataset_version), key, cause),
            claims.org_id,
            body.dataset_uuid,
            body.dataset_version,
            span.start,
            span.stop,
            body.reason,
            commit,
            claims.task_id,
            claims.attempt,
            None,
        )
    return new
