"""Makes the task of a source that a user fires, once per request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tracelake.domain.event import CursorScope, RangeScope, Scope, partition_key
from tracelake.errors import Conflict
from tracelake.store.queries import Connection, Row, find_row, queries


class FiredTask(Row, frozen=True):
    id: UUID
    scope: Any


async def find_task(connection: Connection, org_id: UUID, dag: str, job: str, request_id: UUID) -> FiredTask | None:
    """The task that the request has made before."""
    return await find_row(connection, queries("sources")["find_fire"], FiredTask, org_id, request_id, dag, job)


async def store_task(
    connection: Connection, org_id: UUID, job_id: UUID, request_id: UUID, scope: Mapping[str, Any], *, body: Any = None
) -> UUID:
    arguments = org_id, job_id, request_id, scope, body
    task: UUID = await connection.fetchval(queries("sources")["store_fire"], *arguments)
    return task


def scope_fields(scope: Scope) -> dict[str, Any]:
    """As a task's payload has them, without those that are empty."""
    span = scope.span.edges if isinstance(scope, RangeScope) else (None, None)
    cursor = scope.cursor if isinstance(scope, CursorScope) else None
    fields = {"cursor": cursor, "partition_key": partition_key(scope), "start": span[0], "end": span[1]}
    return {name: value for name, value in fields.items() if value is not None}


def paused(dag: str, job: str) -> Conflict:
    hint = f"`trace source resume {dag} {job}` first"
    return Conflict(f"{dag}.{job} is paused, and is not fired", where="job", hint=hint)
