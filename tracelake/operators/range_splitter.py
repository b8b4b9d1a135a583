"""`range_splitter`: a range becomes partitions of `chunk` numbers, so that many tasks share the work."""

from __future__ import annotations

from pydantic import Field

from tracelake.domain.dag.catalog import Count, OperatorSpec, checked_by
from tracelake.domain.dag.model import Storage
from tracelake.domain.event import RangeScope
from tracelake.domain.ranges import MAX_END, split_aligned
from tracelake.errors import InvalidRequest
from tracelake.operators.api.outcome import (
    Outcome,
    Settings,
    State,
    refuse_flood,
    retract,
    say,
    scope_of,
    tell,
)
from tracelake.operators.api.runtimes import IN_DISPATCHER
from tracelake.wire.task_messages import TaskPayload


class Config(Settings):
    chunk: int = Field(ge=1, le=MAX_END)
    """Partitions begin and end at its multiples, so that requests for different ranges share them."""


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({IN_DISPATCHER}),
    inputs=Count(1, 1),
    outputs=Count(1, None),
    storages=(Storage.PARQUET,),
)


def run(task: TaskPayload, state: State | None) -> Outcome:  # noqa: ARG001 - it remembers nothing
    chunk = Config.model_validate(dict(task.config)).chunk
    scope = scope_of(task)
    if not isinstance(scope, RangeScope):
        raise InvalidRequest(
            f"a range is needed, and this is {say(scope)}", where="/scope", hint="trigger it with start and end"
        )
    span = scope.span
    refuse_flood(task, (span.stop - 1) // chunk - span.start // chunk + 1, "a larger chunk, or a shorter range")
    parts = list(split_aligned(span, chunk))
    if task.invalidation_id is not None:
        return Outcome(invalidations=retract(task, parts))
    return Outcome(tell(task, map(RangeScope, parts)))
