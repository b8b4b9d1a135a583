"""What an in-process operator gives back, and what they all need: the task's scope, and events for every output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from tracelake.domain.event import CursorScope, LabelScope, RangeScope, Scope, WholeScope, read_scope
from tracelake.domain.ranges import Range, format_partition_key
from tracelake.errors import InvalidRequest
from tracelake.wire.task_messages import MAX_EVENTS, EventBody, InvalidationBody, OutputRef, TaskPayload

State = Mapping[str, Any]
AfterCommit = Callable[[Mapping[UUID, int]], None]
"""Told by dataset which commit the outputs became."""


@dataclass(frozen=True)
class Outcome:
    events: tuple[EventBody, ...] = ()
    state: State | None = None
    """What to remember with the completion; None: nothing changes."""
    invalidations: tuple[InvalidationBody, ...] = ()
    after_commit: AfterCommit | None = None
    """On workers: called when the completion was accepted. It may never be: whoever dies first, it is forgotten."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """On workers: rows that were read and have no row in any output, by reason. Shown to people, and counted."""
    said: str = ""
    """On workers: what people should know of how it went."""


def in_full(config: Mapping[str, Any]) -> bool:
    """Whether a job has `mode: full`: each of its tasks reads all of every input and makes all of the output."""
    return config.get("mode") == "full"


class Settings(BaseModel):
    """Base of every Config: closed to fields it does not know, and to values that would need bending."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def scope_of(task: TaskPayload) -> Scope:
    scope = task.scope
    return read_scope(cursor=scope.cursor, partition_key=scope.partition_key, start=scope.start, end=scope.end)


def tell(task: TaskPayload, scopes: Iterable[Scope]) -> tuple[EventBody, ...]:
    """One event for each output and scope."""
    return tuple(_event(output, scope) for scope in scopes for output in task.outputs)


def retract(task: TaskPayload, spans: Iterable[Range]) -> tuple[InvalidationBody, ...]:
    """Readers are to do these ranges again.

    Not an event: told a second time, a range is known as the unit of work it was, and nobody runs (S9).
    """
    return tuple(
        InvalidationBody(
            dataset_uuid=output.dataset_uuid,
            dataset_version=output.dataset_version,
            start=span.edges[0],
            end=span.edges[1],
            reason=f"upstream of {task.job.name} a range was invalidated",
        )
        for span in spans
        for output in task.outputs
    )


def refuse_flood(task: TaskPayload, scopes: int, hint: str) -> None:
    count = scopes * len(task.outputs)
    if count > MAX_EVENTS:
        raise InvalidRequest(f"this would be {count} events at once; at most {MAX_EVENTS}", where="/config", hint=hint)


def say(scope: Scope) -> str:
    """The scope in words, for a refusal."""
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
    """Ranges as they are remembered: `[start, stop]`, half-open."""
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
