"""Reads the events of a call, checks them against its token, and lays them out as columns for one statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tracelake.capability.claims import Claims
from tracelake.domain.event import (
    CursorScope,
    Event,
    LabelScope,
    RangeScope,
    Scope,
    WholeScope,
    partition_key,
    read_scope,
    scope_key,
)
from tracelake.domain.ids import DatasetId, DatasetVersion, TaskId
from tracelake.errors import Forbidden, InvalidRequest
from tracelake.wire.task.outputs import EventBody


@dataclass(frozen=True)
class NewEvent:
    """One event, ready to be stored."""

    event: Event
    event_id: UUID

    @property
    def columns(self) -> tuple[Any, ...]:
        """id, dataset, version, scope, kind, cursor, partition key, range start, range stop."""
        scope = self.event.scope
        span = scope.span if isinstance(scope, RangeScope) else None
        return (
            self.event_id,
            self.event.dataset,
            self.event.version,
            scope_key(scope),
            kind_of(scope),
            scope.cursor if isinstance(scope, CursorScope) else None,
            partition_key(scope),
            span.start if span else None,
            span.stop if span else None,
        )


def read_events(events: Sequence[EventBody], claims: Claims) -> list[NewEvent]:
    """Refuses an event about anything that the token does not let this attempt write."""
    return [_read(event, f"/events/{index}", claims) for index, event in enumerate(events)]


def require_writable(dataset: UUID, version: UUID, where: str, claims: Claims) -> None:
    granted = claims.grants.written.get(dataset)
    if granted is None or granted.dataset_version != version:
        raise Forbidden(
            "the token does not let this task write that dataset and version",
            where=f"{where}/dataset_uuid",
            hint="use dataset_uuid and dataset_version as the claim gave them",
        )


def kind_of(scope: Scope) -> str:
    match scope:
        case CursorScope():
            return "cursor"
        case RangeScope() | LabelScope():
            return "partition"
        case WholeScope():
            return "update"


def transposed(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Rows as columns, for `unnest`; none of them if there are no rows."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _read(body: EventBody, where: str, claims: Claims) -> NewEvent:
    require_writable(body.dataset_uuid, body.dataset_version, where, claims)
    try:
        scope = read_scope(cursor=body.cursor, partition_key=body.partition_key, start=body.start, end=body.end)
    except InvalidRequest as wrong:
        raise InvalidRequest(wrong.message, where=f"{where}{wrong.where or ''}", hint=wrong.hint) from None
    event = Event(DatasetId(body.dataset_uuid), DatasetVersion(body.dataset_version), scope)
    return NewEvent(event, event.id_from(TaskId(claims.task_id)))
