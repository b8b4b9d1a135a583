"""In-process operators: pure functions first, by property; then through the whole Dispatcher, with two replicas."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dispatcher.control import PULL, Org, an_org, control_for, deployed_and_active, run_here
from tests.support.operators import registered
from tests.support.tiling import tiles
from tests.support.verbs import activate_dag, deploy_dag, invalidate, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.cancel_retired import cancel_retired_tasks
from tracelake.dispatcher.runtimes.run_in_process import Ran, run_in_process
from tracelake.domain.ranges import Range, inclusive, merge
from tracelake.errors import InvalidRequest
from tracelake.operators import noop, range_aggregator, range_splitter
from tracelake.operators.api.outcome import Outcome, State
from tracelake.operators.registry import IN_PROCESS, InProcess
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


LINE = """
name: line
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: cut, operator: range_splitter, config: {chunk: 10}, inputs: [{from: {job: ask}}]}
  - {name: join, operator: range_aggregator, config: {size: 100}, inputs: [{from: {job: cut}}]}
  - {name: work, operator: pull, runtime: ecs_platform, inputs: [{from: {job: join}}]}
publish: {asked: {job: ask}, parts: {job: cut}}
"""


@pytest.fixture
async def pair(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[tuple[Control, Control]]:
    with registered(pull=PULL):
        async with (
            control_for(state_db, queue_db, tmp_path, replica="one") as replica,
            control_for(state_db, queue_db, tmp_path, replica="two") as other_replica,
        ):
            yield replica, other_replica


@pytest.fixture
async def org(pair: tuple[Control, Control]) -> Org:
    return await an_org(pair[0].pool)


async def partitions(control: Control, job: str, *states: str) -> list[str]:
    rows = await control.pool.fetch(
        "SELECT t.partitions[1] AS key FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.name = $1 AND t.status = ANY ($2::text[]::task_status[]) ORDER BY 1",
        job,
        list(states) or ["Queued"],
    )
    return [row["key"] for row in rows]


@pytest.mark.anyio
async def test_a_range_is_split_and_put_together_again(pair: tuple[Control, Control], org: Org) -> None:
    control, _ = pair
    await deployed_and_active(control, org, LINE)
    await trigger(control, org.id, "line", "ask", start=0, end=249, request_id=uuid4())
    await run_here(control)
    assert len(await partitions(control, "join", "Completed")) == 25
    assert await partitions(control, "work") == ["0-99", "100-199"]
    # The rest of the third range, and some of it twice.
    await trigger(control, org.id, "line", "ask", start=240, end=299, request_id=uuid4())
    await run_here(control)
    assert await partitions(control, "work") == ["0-99", "100-199", "200-299"]


@pytest.mark.anyio
async def test_an_invalidated_range_runs_again_where_it_was_emitted(pair: tuple[Control, Control], org: Org) -> None:
    control, _ = pair
    await deployed_and_active(control, org, LINE)
    await trigger(control, org.id, "line", "ask", start=0, end=249, request_id=uuid4())
    await run_here(control)
    request = uuid4()
    for _ in range(2):
        await invalidate(control, org.id, org.user, "parts", start=95, end=104, reason="reorg", request_id=request)
    await invalidate(control, org.id, org.user, "parts", start=205, end=209, reason="reorg", request_id=uuid4())
    await run_here(control)
    assert await partitions(control, "work") == ["0-99", "0-99", "100-199", "100-199"]
    undone = (
        "SELECT count(*) FROM data_invalidation_jobs s JOIN jobs j ON j.id = s.job_id"
        " WHERE j.name = 'join' AND s.processed_at IS NULL"
    )
    assert await control.pool.fetchval(undone) == 0


@pytest.mark.anyio
async def test_two_replicas_lose_no_state_of_one_job(pair: tuple[Control, Control], org: Org) -> None:
    replica, other_replica = pair
    await deployed_and_active(replica, org, LINE.replace("chunk: 10", "chunk: 1"))
    await trigger(replica, org.id, "line", "ask", start=0, end=59, request_id=uuid4())
    for _ in range(2):  # ask's event makes cut's task, cut's events make join's
        await replica.router().route("route_event")
        await run_in_process(replica.claimer(), replica.completer(), await queued(replica, "cut"))
    waiting = await queued(replica, "join")
    assert len(waiting) == 60
    both = await asyncio.gather(
        run_in_process(replica.claimer(), replica.completer(), waiting),
        run_in_process(other_replica.claimer(), other_replica.completer(), waiting[::-1]),
        run_in_process(replica.claimer(), replica.completer(), waiting[10:]),
    )
    assert sum(done.completed for done in both) == 60
    state = await replica.pool.fetchval("SELECT state::text FROM operator_state")
    assert json.loads(state)["heard"] == [[0, 60]]
    runs = await replica.pool.fetch("SELECT count(*) FROM task_attempts GROUP BY task_id HAVING count(*) > 1")
    assert runs == []


async def queued(control: Control, job: str) -> list[UUID]:
    rows = await control.pool.fetch(
        "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.name = $1 AND t.status = 'Queued' ORDER BY t.id",
        job,
    )
    return [row["id"] for row in rows]


@pytest.mark.anyio
async def test_a_task_that_cannot_be_right_fails_for_good_and_says_why(pair: tuple[Control, Control], org: Org) -> None:
    control, _ = pair
    await deployed_and_active(control, org, LINE)
    await trigger(control, org.id, "line", "ask", cursor=5, request_id=uuid4())
    await run_here(control)
    [row] = await control.pool.fetch(
        "SELECT t.status::text, t.error_message, t.next_retry_at, a.outcome::text FROM tasks t"
        " JOIN task_attempts a ON a.task_id = t.id"
    )
    assert (row["status"], row["next_retry_at"], row["outcome"]) == ("Failed", None, "Failed")
    assert "a range is needed, and this is cursor 5" in row["error_message"]


@pytest.mark.anyio
async def test_an_outcome_that_is_refused_fails_its_task_and_no_other(
    pair: tuple[Control, Control], org: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, _ = pair
    await deployed_and_active(control, org, LINE)
    for start in (0, 10):
        await trigger(control, org.id, "line", "ask", start=start, end=start + 9, request_id=uuid4())
    await control.router().route("route_event")

    def run(task: TaskPayload, state: State | None) -> Outcome:
        if task.scope.start == 0:
            return Outcome((EventBody(dataset_uuid=uuid4(), dataset_version=uuid4(), cursor=1),))
        return range_splitter.run(task, state)

    broken = InProcess(IN_PROCESS["range_splitter"].spec, run)
    monkeypatch.setattr(
        "tracelake.dispatcher.runtimes.run_in_process.IN_PROCESS", {**IN_PROCESS, "range_splitter": broken}
    )
    assert await run_in_process(control.claimer(), control.completer(), await queued(control, "cut")) == Ran(
        completed=1, failed=1
    )
    error = await control.pool.fetchval("SELECT error_message FROM tasks WHERE status = 'Failed'")
    assert error.startswith("its outcome was refused: the token does not let this task write")


@pytest.mark.anyio
async def test_a_replica_that_dies_in_the_middle_leaves_the_task_queued(
    pair: tuple[Control, Control], org: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, other_replica = pair
    await deployed_and_active(replica, org, LINE)
    await trigger(replica, org.id, "line", "ask", start=0, end=9, request_id=uuid4())
    await replica.router().route("route_event")
    waiting = await queued(replica, "cut")

    async def die(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr("tracelake.dispatcher.runtimes.run_in_process.complete_in_transaction", die)
        with pytest.raises(asyncio.CancelledError):
            await run_in_process(replica.claimer(), replica.completer(), waiting)
    assert await queued(replica, "cut") == waiting
    assert await run_in_process(other_replica.claimer(), other_replica.completer(), waiting) == Ran(completed=1)
    assert await run_in_process(replica.claimer(), replica.completer(), [*waiting, uuid4()]) == Ran(skipped=2)


@pytest.mark.anyio
async def test_an_unchanged_aggregator_keeps_its_state_in_the_next_version(
    pair: tuple[Control, Control], org: Org
) -> None:
    control, _ = pair
    await deployed_and_active(control, org, LINE)
    await trigger(control, org.id, "line", "ask", start=0, end=49, request_id=uuid4())
    await run_here(control)
    changed = await deploy_dag(
        control, org.id, org.user, LINE.replace("operator: pull", "operator: pull, config: {n: 2}")
    )
    await trigger(control, org.id, "line", "ask", start=50, end=69, request_id=uuid4())
    await control.router().route("route_event")
    await run_in_process(control.claimer(), control.completer(), await queued(control, "cut"))
    await control.router().route("route_event")
    assert len(await queued(control, "join")) == 2  # the old version's, when it leaves
    done = await activate_dag(control, org.id, "line", changed.dag_version_id)
    assert (done.canceled_tasks, done.made_again) == (2, 2)
    await trigger(control, org.id, "line", "ask", start=70, end=99, request_id=uuid4())
    await run_here(control)
    assert await partitions(control, "work") == ["0-99"]


@pytest.mark.anyio
async def test_a_straggler_of_a_version_that_left_runs_in_the_one_that_serves(
    pair: tuple[Control, Control], org: Org
) -> None:
    control, _ = pair
    first = await deployed_and_active(control, org, LINE)
    second = await deployed_and_active(control, org, LINE.replace("operator: pull", "operator: pull, config: {n: 2}"))
    straggler = await control.pool.fetchval(
        "INSERT INTO tasks (org_id, job_id, dedupe_key, input_versions, woken_at)"
        " SELECT org_id, id, 'partition:late',"
        " jsonb_build_object('dataset_uuid', input_datasets[1], 'start', 0, 'end', 9), now()"
        " FROM jobs WHERE id = $1 RETURNING id",
        first.jobs["join"],
    )
    assert await run_in_process(control.claimer(), control.completer(), [straggler]) == Ran(skipped=1)
    assert await cancel_retired_tasks(control.pool, control.after_commit) == 1
    await run_here(control)
    [row] = await control.pool.fetch("SELECT job_id, state::text AS state FROM operator_state")
    assert (row["job_id"], json.loads(row["state"])["heard"]) == (second.jobs["join"], [[0, 10]])


@pytest.mark.anyio
async def test_an_activation_in_the_middle_of_a_busy_aggregator_loses_nothing(
    pair: tuple[Control, Control], org: Org
) -> None:
    replica, other_replica = pair
    first = LINE.replace("chunk: 10", "chunk: 1")
    await deployed_and_active(replica, org, first)
    changed = await deploy_dag(
        replica, org.id, org.user, first.replace("operator: pull", "operator: pull, config: {n: 2}")
    )
    await trigger(replica, org.id, "line", "ask", start=0, end=59, request_id=uuid4())
    for _ in range(2):
        await replica.router().route("route_event")
        await run_in_process(replica.claimer(), replica.completer(), await queued(replica, "cut"))
    waiting = await queued(replica, "join")
    _, _, done = await asyncio.gather(
        run_in_process(replica.claimer(), replica.completer(), waiting),
        run_in_process(other_replica.claimer(), other_replica.completer(), waiting[::-1]),
        activate_dag(other_replica, org.id, "line", changed.dag_version_id),
    )
    await run_here(replica)
    state = await replica.pool.fetchval(
        "SELECT state::text FROM operator_state WHERE job_id = $1", changed.jobs["join"]
    )
    assert json.loads(state)["heard"] == [[0, 60]]
    completed = await replica.pool.fetchval(
        "SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'join' AND t.status = 'Completed'"
    )
    assert (completed, done.made_again) == (60, done.canceled_tasks)


def test_received_ranges_are_stored_merged() -> None:
    feed = Feed(1000)
    for n in range(0, 200, 2):
        feed.hear(over(Range(n, n + 2)))
    assert feed.state is not None
    assert [Range(*pair) for pair in feed.state["heard"]] == list(merge([Range(0, 200)]))
