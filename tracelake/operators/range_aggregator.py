"""`range_aggregator`: collects partitions and cursors, in any order, into one event for each full range of `size`.

Its state has the numbers that it received. The event of a range is sent with the last of its numbers, and only once; a
range that is invalidated later is invalidated as a whole for its readers.

While everything that it reads is paused, the rest of a range may be long in coming: then it sends what it has (a task
with `flush`), and the rest of that range later, as an event of its own.
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
    OperatorConfig,
    Outcome,
    State,
    check_event_count,
    describe,
    events_for,
    invalidations_for,
    pairs,
    scope_of,
)
from tracelake.operators.api.runtimes import IN_DISPATCHER
from tracelake.wire.task.lifecycle import TaskPayload

HINT = "a larger size, or a start nearer to where the data begins"


class Config(OperatorConfig):
    size: int = Field(ge=1, le=MAX_END)
    """Ranges start and end at multiples of it."""
    start: int = Field(default=0, ge=0, le=MAX_END)
    """The first number that exists: a cursor means everything from here on."""


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({IN_DISPATCHER}),
    inputs=Count(1, 1),
    outputs=Count(1, None),
    storages=(Storage.PARQUET,),
    flushes=True,
)


def run(task: TaskPayload, state: State | None) -> Outcome:
    config = Config.model_validate(dict(task.config))
    generation, received, early = _remembered(task, state)
    sent = merge([*_whole(received, config), *early])
    if task.flush is True:
        return _send(task, config, generation, received, new=subtract(received, sent), sent=sent)
    span = _span(scope_of(task), config)
    if task.invalidation_id is not None:
        return _again(task, config, sent, span)
    now = merge([*received, span]) if span else received
    return _send(task, config, generation, now, new=subtract(_whole(now, config), sent), sent=sent)


def _send(
    task: TaskPayload,
    config: Config,
    generation: str,
    received: Sequence[Range],
    *,
    new: Sequence[Range],
    sent: Sequence[Range],
) -> Outcome:
    """Send `new`, and remember what was sent before its range was full."""
    check_event_count(task, _count(new, config), HINT)
    early = subtract(merge([*sent, *new]), _whole(received, config))
    state: dict[str, object] = {"generation": generation, "heard": list(pairs(received))}
    if early:
        state["early"] = list(pairs(merge(early)))
    return Outcome(events_for(task, map(RangeScope, _cut(new, config))), state)


def _again(task: TaskPayload, config: Config, sent: Sequence[Range], span: Range | None) -> Outcome:
    """Only ranges that were sent: others are sent when they are full."""
    if span is None:
        return Outcome()
    touched = Range(
        span.start // config.size * config.size, min(-(-span.stop // config.size) * config.size, MAX_END + 1)
    )
    events = intersect(sent, [touched])
    check_event_count(task, _count(events, config), HINT)
    return Outcome(invalidations=invalidations_for(task, _cut(events, config)))


def _remembered(task: TaskPayload, state: State | None) -> tuple[str, list[Range], list[Range]]:
    """What was received of this generation of the input, and sent early; other generations do not count."""
    generation = str(task.inputs[0].dataset_version) if task.inputs else ""
    if state is None or state.get("generation") != generation:
        return generation, [], []
    heard, early = ([Range(start, stop) for start, stop in state.get(name, ())] for name in ("heard", "early"))
    return generation, heard, early


def _span(scope: Scope, config: Config) -> Range | None:
    """Return the numbers that came; None if all are before the start."""
    if isinstance(scope, RangeScope):
        first, stop = scope.span.start, scope.span.stop
    elif isinstance(scope, CursorScope):
        first, stop = config.start, min(scope.cursor, MAX_END) + 1
    else:
        raise InvalidRequest(f"a range or a cursor is needed, and this is {describe(scope)}", where="/scope")
    first = max(first, config.start)
    return Range(first, stop) if first < stop else None


def _whole(spans: Iterable[Range], config: Config) -> list[Range]:
    """Return the full aligned ranges, adjacent ones merged. The first one may begin at `start`, in its middle."""
    ranges = []
    for span in spans:
        first = -(-span.start // config.size) * config.size
        if span.start == config.start:
            first = span.start
        stop = span.stop // config.size * config.size
        if first < stop:
            ranges.append(Range(first, stop))
    return ranges


def _count(spans: Iterable[Range], config: Config) -> int:
    """How many `_cut` makes of them, which may be too many to be made."""
    return sum((span.stop - 1) // config.size - span.start // config.size + 1 for span in spans)


def _cut(spans: Iterable[Range], config: Config) -> Iterator[Range]:
    for span in spans:
        start = span.start
        while start < span.stop:
            stop = min((start // config.size + 1) * config.size, span.stop)
            yield Range(start, stop)
            start = stop
