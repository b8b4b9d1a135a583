"""The outcome of an operator, and what in-process operators share: the task's scope, and events for every output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from tracelake.domain.event import CursorScope, LabelScope, RangeScope, Scope, WholeScope, read_scope
from tracelake.domain.ranges import Range, format_partition_key
from tracelake.errors import InvalidRequest
from tracelake.wire.task.lifecycle import OutputRef, TaskPayload
from tracelake.wire.task.outputs import MAX_EVENTS, EventBody, InvalidationBody

State = Mapping[str, Any]
OnCommit = Callable[[Mapping[UUID, int]], None]
"""Called with the commit of each output dataset."""


@dataclass(frozen=True)
class Outcome:
    events: tuple[EventBody, ...] = ()
    state: State | None = None
    """The state to store with the completion; None: unchanged."""
    invalidations: tuple[InvalidationBody, ...] = ()
    after_commit: OnCommit | None = None
    """On workers: called when the completion was accepted. If the worker ends before, it is never called."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """On workers: rows that were read and have no row in any output, by reason. Counted, and shown to users."""
    message: str = ""
    """On workers: a message for users."""


def in_full(config: Mapping[str, Any]) -> bool:
    """Whether a job has `mode: full`: each task reads every input in full and makes the whole output."""
    return config.get("mode") == "full"


class OperatorConfig(BaseModel):
    """Base of every Config: unknown fields and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def scope_of(task: TaskPayload) -> Scope:
    scope = task.scope
    return read_scope(cursor=scope.cursor, partition_key=scope.partition_key, start=scope.start, end=scope.end)


def events_for(task: TaskPayload, scopes: Iterable[Scope]) -> tuple[EventBody, ...]:
    """Make an event for each output and scope."""
    return tuple(_event(output, scope) for scope in scopes for output in task.outputs)


def invalidations_for(task: TaskPayload, spans: Iterable[Range | str]) -> tuple[InvalidationBody, ...]:
    """Make invalidations, so that readers process these ranges, or partitions with a label, again.

    Not events: a repeated event of a range is the same unit of work, for which nobody runs again (S9).
    """
    return tuple(_invalidation(task, output, span) for span in spans for output in task.outputs)


def _invalidation(task: TaskPayload, output: OutputRef, span: Range | str) -> InvalidationBody:
    start, end = span.edges if isinstance(span, Range) else (None, None)
    return InvalidationBody(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        start=start,
        end=end,
        partition_key=None if isinstance(span, Range) else span,
        reason=f"upstream of {task.job.name} a {'range' if isinstance(span, Range) else 'partition'} was invalidated",
    )


def check_event_count(task: TaskPayload, scopes: int, hint: str) -> None:
    count = scopes * len(task.outputs)
    if count > MAX_EVENTS:
        raise InvalidRequest(f"this would be {count} events at once; at most {MAX_EVENTS}", where="/config", hint=hint)


def describe(scope: Scope) -> str:
    """Describe the scope, for an error."""
    match scope:
        case CursorScope(cursor):
            return f"cursor {cursor}"
        case RangeScope(span):
            return f"range {format_partition_key(span)}"
        case LabelScope(label):
            return f"partition {label!r}"
        case WholeScope():
            return "the whole dataset"


def pairs(spans: Iterable[Range]) -> Iterator[list[int]]:
    """Ranges as stored in the state: `[start, stop]`, half-open."""
    return ([span.start, span.stop] for span in spans)


def _event(output: OutputRef, scope: Scope) -> EventBody:
    span = scope.span if isinstance(scope, RangeScope) else None
    return EventBody(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        cursor=scope.cursor if isinstance(scope, CursorScope) else None,
        partition_key=scope.label if isinstance(scope, LabelScope) else None,
        start=span.edges[0] if span else None,
        end=span.edges[1] if span else None,
    )
