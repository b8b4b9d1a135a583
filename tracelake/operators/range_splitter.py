"""`range_splitter`: splits a range into partitions of `chunk` numbers, for many tasks."""

from __future__ import annotations

from pydantic import Field

from tracelake.domain.dag.catalog import Count, OperatorSpec, checked_by
from tracelake.domain.dag.model import Storage
from tracelake.domain.event import RangeScope
from tracelake.domain.ranges import MAX_END, split_aligned
from tracelake.errors import InvalidRequest
from tracelake.operators.api.outcome import (
    OperatorConfig,
    Outcome,
    State,
    check_event_count,
    describe,
    events_for,
    invalidations_for,
    scope_of,
)
from tracelake.operators.api.runtimes import IN_DISPATCHER
from tracelake.wire.task.lifecycle import TaskPayload


class Config(OperatorConfig):
    chunk: int = Field(ge=1, le=MAX_END)
    """Partitions start and end at multiples of it, so that requests for different ranges share them."""


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({IN_DISPATCHER}),
    inputs=Count(1, 1),
    outputs=Count(1, None),
    storages=(Storage.PARQUET,),
)


def run(task: TaskPayload, state: State | None) -> Outcome:  # noqa: ARG001 - it has no state
    chunk = Config.model_validate(dict(task.config)).chunk
    scope = scope_of(task)
    if not isinstance(scope, RangeScope):
        raise InvalidRequest(
            f"a range is needed, and this is {describe(scope)}", where="/scope", hint="trigger it with start and end"
        )
    span = scope.span
    check_event_count(task, (span.stop - 1) // chunk - span.start // chunk + 1, "a larger chunk, or a shorter range")
    parts = list(split_aligned(span, chunk))
    if task.invalidation_id is not None:
        return Outcome(invalidations=invalidations_for(task, parts))
    return Outcome(events_for(task, map(RangeScope, parts)))
