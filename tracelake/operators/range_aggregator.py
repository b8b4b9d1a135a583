"""`range_aggregator`: partitions and cursors, in any order, become one event for each full range of `size` numbers.

It remembers which numbers it has heard of. A range is told when the last of its numbers is heard, and never again; a
range that is invalidated later is invalidated for its readers too, whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pydantic import Field

from tracelake.domain.dag.catalog import Count, OperatorSpec, checked_by
from tracelake.domain.dag.model import Storage
from tracelake.domain.event import CursorScope, RangeScope, Scope
from tracelake.domain.ranges import MAX_END, Range, intersect, merge, subtract
from tracelake.errors import InvalidRequest
from tracelake.operators.api.outcome import (
    Outcome,
    Settings,
    State,
    pairs,
    refuse_flood,
    retract,
    say,
    scope_of,
    tell,
)
from tracelake.operators.api.runtimes import IN_DISPATCHER
from tracelake.wire.task_messages import TaskPayload

HINT = "a larger size, or a start nearer to where the data begins"


class Config(Settings):
    size: int = Field(ge=1, le=MAX_END)
    """Ranges begin and end at its multiples."""
    start: int = Field(default=0, ge=0, le=MAX_END)
    """The first number that there is: a cursor stands for everything from here on."""


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({IN_DISPATCHER}),
    inputs=Count(1, 1),
    outputs=Count(1, None),
    storages=(Storage.PARQUET,),
)


def run(task: TaskPayload, state: State | None) -> Outcome:
    config = Config.model_validate(dict(task.config))
    generation, heard = _remembered(task, state)
    span = _span(scope_of(task), config)
    if task.invalidation_id is not None:
        return _again(task, config, heard, span)
    now = merge([*heard, span]) if span else heard
    full = subtract(_whole(now, config), _whole(heard, config))
    refuse_flood(task, sum(len(part) for part in full) // config.size, HINT)
    told = tell(task, map(RangeScope, _cut(full, config)))
    return Outcome(told, {"generation": generation, "heard": list(pairs(now))})


def _again(task: TaskPayload, config: Config, heard: Sequence[Range], span: Range | None) -> Outcome:
    """Only what was told: a range that is not full yet will be told when it is."""
    if span is None:
        return Outcome()
    touched = Range(
        span.start // config.size * config.size, min(-(-span.stop // config.size) * config.size, MAX_END + 1)
    )
    told = intersect(_whole(heard, config), [touched])
    refuse_flood(task, sum(len(part) for part in told) // config.size, HINT)
    return Outcome(invalidations=retract(task, _cut(told, config)))


def _remembered(task: TaskPayload, state: State | None) -> tuple[str, tuple[Range, ...]]:
    """What was heard of this generation of the input; of another one nothing counts."""
    generation = str(task.inputs[0].dataset_version) if task.inputs else ""
    if state is None or state.get("generation") != generation:
        return generation, ()
    return generation, tuple(Range(start, stop) for start, stop in state["heard"])


def _span(scope: Scope, config: Config) -> Range | None:
    """The numbers that came; None if all lie before the start."""
    if isinstance(scope, RangeScope):
        first, stop = scope.span.start, scope.span.stop
    elif isinstance(scope, CursorScope):
        first, stop = config.start, min(scope.cursor, MAX_END) + 1
    else:
        raise InvalidRequest(f"a range or a cursor is needed, and this is {say(scope)}", where="/scope")
    first = max(first, config.start)
    return Range(first, stop) if first < stop else None


def _whole(spans: Iterable[Range], config: Config) -> list[Range]:
    """The full aligned ranges inside, neighbours together. The first one may begin at `start`, in its middle."""
    found = []
    for span in spans:
        first = -(-span.start // config.size) * config.size
        if span.start == config.start:
            first = span.start
        stop = span.stop // config.size * config.size
        if first < stop:
            found.append(Range(first, stop))
    return found


def _cut(spans: Iterable[Range], config: Config) -> Iterator[Range]:
    for span in spans:
        start = span.start
        while start < span.stop:
            stop = (start // config.size + 1) * config.size
            yield Range(start, stop)
            start = stop
