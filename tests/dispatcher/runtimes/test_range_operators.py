"""In-process operators as pure functions, by property."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiling import tiles
from tracelake.domain.ranges import Range, inclusive, merge
from tracelake.errors import InvalidRequest
from tracelake.operators import noop, range_aggregator, range_splitter
from tracelake.operators.registry import IN_PROCESS
from tracelake.wire.task.lifecycle import InputRef, JobRef, OutputRef, ScopeRef, TaskPayload
from tracelake.wire.task.outputs import EventBody, InvalidationBody

GENERATION = uuid4()
OUTPUTS = [
    OutputRef(output_index=n, dataset_uuid=uuid4(), dataset_version=uuid4(), storage_location="s3://trace/x/")
    for n in range(2)
]


def payload(
    operator: str, config: Mapping[str, Any], scope: ScopeRef, *, outputs: int = 1, invalidated: bool = False
) -> TaskPayload:
    return TaskPayload(
        task_id=uuid4(),
        attempt=1,
        job=JobRef(dag_name="dag", name="job"),
        operator=operator,
        config=config,
        inputs=[InputRef(dataset_uuid=uuid4(), dataset_version=GENERATION, trigger=True)],
        outputs=OUTPUTS[:outputs],
        scope=scope,
        invalidation_id=uuid4() if invalidated else None,
    )


def over(span: Range) -> ScopeRef:
    return ScopeRef(start=span.edges[0], end=span.edges[1])


def spans(bodies: Sequence[EventBody | InvalidationBody]) -> list[Range]:
    found = []
    for body in bodies:
        assert body.start is not None
        assert body.end is not None
        found.append(inclusive(body.start, body.end))
    return found


ranges = st.builds(lambda start, length: Range(start, start + length), st.integers(0, 300), st.integers(1, 120))


def test_noop_forwards_its_event_once_to_each_output() -> None:
    for scope in (ScopeRef(), ScopeRef(cursor=7), ScopeRef(partition_key="2025-01-01"), ScopeRef(start=3, end=9)):
        done = noop.run(payload("noop", {}, scope, outputs=2), None)
        assert [event.dataset_uuid for event in done.events] == [output.dataset_uuid for output in OUTPUTS]
        assert {(event.cursor, event.partition_key, event.start, event.end) for event in done.events} == {
            (scope.cursor, scope.partition_key, scope.start, scope.end)
        }


@given(ranges, st.integers(1, 50))
def test_a_splitter_covers_the_range_exactly_in_aligned_chunks(span: Range, chunk: int) -> None:
    done = range_splitter.run(payload("range_splitter", {"chunk": chunk}, over(span)), None)
    chunks = spans(done.events)
    assert tiles(chunks, span)
    assert all(len(chunk_) <= chunk for chunk_ in chunks)
    assert all(chunk_.start % chunk == 0 for chunk_ in chunks[1:])
    again = range_splitter.run(payload("range_splitter", {"chunk": chunk}, over(span), invalidated=True), None)
    assert (spans(again.invalidations), again.events) == (chunks, ())


def test_a_splitter_refuses_what_it_cannot_split() -> None:
    for scope in (ScopeRef(), ScopeRef(cursor=7), ScopeRef(partition_key="monday")):
        with pytest.raises(InvalidRequest):
            range_splitter.run(payload("range_splitter", {"chunk": 5}, scope), None)
    with pytest.raises(InvalidRequest, match="at most"):
        range_splitter.run(payload("range_splitter", {"chunk": 1}, over(Range(0, 10**15))), None)


class Feed:
    """An aggregator with its memory, as the Dispatcher keeps it: through JSON."""

    def __init__(self, size: int, start: int = 0) -> None:
        self.config = {"size": size, "start": start}
        self.state: dict[str, Any] | None = None
        self.emitted: Counter[Range] = Counter()

    def hear(self, scope: ScopeRef) -> list[Range]:
        done = range_aggregator.run(payload("range_aggregator", self.config, scope), self.state)
        self.state = json.loads(json.dumps(done.state))
        self.emitted.update(spans(done.events))
        return spans(done.events)

    def flush(self) -> list[Range]:
        asked = msgspec.structs.replace(payload("range_aggregator", self.config, ScopeRef()), flush=True)
        done = range_aggregator.run(asked, self.state)
        self.state = json.loads(json.dumps(done.state))
        self.emitted.update(spans(done.events))
        return spans(done.events)

    def invalidate(self, span: Range) -> list[Range]:
        done = range_aggregator.run(payload("range_aggregator", self.config, over(span), invalidated=True), self.state)
        assert (done.events, done.state) == ((), None)
        return spans(done.invalidations)


heard = st.lists(st.one_of(ranges.map(over), st.integers(0, 400).map(lambda n: ScopeRef(cursor=n))), max_size=25)


def covered(scopes: Sequence[ScopeRef], start: int = 0) -> set[int]:
    found: set[int] = set()
    for scope in scopes:
        if scope.cursor is not None:
            found.update(range(start, scope.cursor + 1))
        else:
            assert scope.start is not None
            assert scope.end is not None
            found.update(range(max(scope.start, start), scope.end + 1))
    return found


def numbers(feed: Feed) -> set[int]:
    return {number for span in feed.emitted for number in range(span.start, span.stop)}


@given(heard, st.integers(1, 60), st.sets(st.integers(0, 25)))
def test_with_a_flush_at_any_moment_every_number_is_sent_once_and_nothing_that_did_not_come(
    scopes: list[ScopeRef], size: int, flushes: set[int]
) -> None:
    feed = Feed(size)
    for place, scope in enumerate(scopes):
        feed.hear(scope)
        if place in flushes:
            feed.flush()
            assert numbers(feed) == covered(scopes[: place + 1])
    sent = [number for span in feed.emitted.elements() for number in range(span.start, span.stop)]
    assert len(sent) == len(set(sent))
    assert set(sent) <= covered(scopes)
    assert all(span.start // size == (span.stop - 1) // size for span in feed.emitted), "each within its range"
    assert feed.flush() == [] or set(sent) < covered(scopes)
    assert feed.flush() == []


def full(numbers: set[int], size: int) -> set[Range]:
    return {
        Range(start, start + size)
        for start in range(0, 600, size)
        if all(number in numbers for number in range(start, start + size))
    }


@given(heard, st.integers(1, 40), st.data())
def test_an_aggregator_emits_each_full_range_once_in_any_order_with_duplicates_and_gaps(
    scopes: list[ScopeRef], size: int, data: st.DataObject
) -> None:
    feed = Feed(size)
    for scope in data.draw(st.permutations([*scopes, *scopes[::2]])):
        feed.hear(scope)
    assert set(feed.emitted) == full(covered(scopes), size)
    assert set(feed.emitted.values()) <= {1}


@given(heard, st.integers(1, 40), st.lists(ranges, max_size=5))
def test_an_invalidation_reaches_exactly_the_full_ranges_it_touches(
    scopes: list[ScopeRef], size: int, wrong: list[Range]
) -> None:
    feed = Feed(size)
    for scope in scopes:
        feed.hear(scope)
    for span in wrong:
        touched = feed.invalidate(span)
        assert len(touched) == len(set(touched))
        assert set(touched) == {emitted for emitted in feed.emitted if emitted.overlaps(span)}
    # It is not emitted again: its readers have its event already.
    assert [emitted for scope in scopes for emitted in feed.hear(scope)] == []


@given(heard, st.integers(1, 40), st.integers(0, 200))
def test_an_aggregator_counts_from_its_start(scopes: list[ScopeRef], size: int, start: int) -> None:
    feed = Feed(size, start)
    for scope in scopes:
        feed.hear(scope)
    numbers = covered(scopes, start) | set(range(start))  # what lies before counts as there
    wanted = {Range(max(span.start, start), span.stop) for span in full(numbers, size) if span.stop > start}
    reached = {
        span for span in wanted if all(number in covered(scopes, start) for number in range(span.start, span.stop))
    }
    assert set(feed.emitted) == reached
    assert set(feed.emitted.values()) <= {1}


def test_an_aggregator_drops_its_state_of_another_generation() -> None:
    feed = Feed(10)
    assert feed.hear(over(Range(0, 10))) == [Range(0, 10)]
    assert feed.state is not None
    feed.state["generation"] = str(uuid4())
    assert feed.hear(over(Range(5, 10))) == []


def test_an_aggregator_refuses_a_flood_and_other_scopes() -> None:
    with pytest.raises(InvalidRequest, match="at most"):
        Feed(1).hear(ScopeRef(cursor=10**9))
    for scope in (ScopeRef(), ScopeRef(partition_key="monday")):
        with pytest.raises(InvalidRequest):
            Feed(10).hear(scope)


@pytest.mark.parametrize(
    ("operator", "config", "codes"),
    [
        ("noop", {"x": 1}, ["unknown_field"]),
        ("range_splitter", {}, ["missing"]),
        ("range_splitter", {"chunk": 0}, ["bad_config"]),
        ("range_splitter", {"chunk": "7"}, ["bad_config"]),
        ("range_aggregator", {"size": 10, "start": -1}, ["bad_config"]),
        ("range_aggregator", {"size": 10}, []),
    ],
)
def test_configs_are_closed(operator: str, config: dict[str, Any], codes: list[str]) -> None:
    assert [problem.code for problem in IN_PROCESS[operator].spec.check_config(config)] == codes


def test_received_ranges_are_stored_merged() -> None:
    feed = Feed(1000)
    for n in range(0, 200, 2):
        feed.hear(over(Range(n, n + 2)))
    assert feed.state is not None
    assert [Range(*pair) for pair in feed.state["heard"]] == list(merge([Range(0, 200)]))
