"""Backpressure on random DAGs: who is paused, why, and that everything drains once the slow consumer recovers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.domain.flow.pressure import Load, Priority, Threshold, Trip, pauses, trips
from tracelake.domain.ids import JobId

Edge = tuple[JobId, JobId]


def job(number: int) -> JobId:
    return JobId(UUID(int=number))


@dataclass
class World:
    """A DAG with its thresholds, and a simulation of it: events wait per job, tasks queue, each end makes events."""

    jobs: list[JobId]
    edges: list[Edge]
    max_depth: dict[JobId, int]
    max_age: dict[JobId, int]
    priority: dict[JobId, Priority]

    def load(self, job_id: JobId, depth: int, age: float) -> Load:
        return Load(job_id, depth, age, self.max_depth.get(job_id), self.max_age.get(job_id))

    def upstream(self, job_id: JobId) -> set[JobId]:
        above = {producer for producer, consumer in self.edges if consumer == job_id}
        return above.union(*(self.upstream(producer) for producer in above))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    jobs = [job(number) for number in range(1, draw(st.integers(2, 7)) + 1)]
    pairs = [(item, other) for index, other in enumerate(jobs) for item in jobs[:index]]
    edges = [pair for pair in pairs if draw(st.booleans())]
    any_job = st.sampled_from(jobs)
    return World(
        jobs,
        edges,
        draw(st.dictionaries(any_job, st.integers(1, 6))),
        draw(st.dictionaries(any_job, st.integers(1, 6))),
        {job_id: draw(st.sampled_from(Priority)) for job_id in jobs},
    )


@settings(max_examples=60, deadline=None)
@given(worlds(), st.data())
def test_a_job_is_paused_exactly_if_a_queue_below_it_reached_its_limit(world: World, data: st.DataObject) -> None:
    counts = st.integers(0, 8)
    loads = {job_id: world.load(job_id, data.draw(counts), data.draw(counts)) for job_id in world.jobs}
    found = pauses(trips(loads.values()), world.edges)
    for job_id, priority in product(world.jobs, Priority):
        share = 0.5 if priority is Priority.BULK else 1
        expected = set()
        for below in world.jobs:
            load = loads[below]
            if job_id not in world.upstream(below) or load.depth == 0:
                continue
            if load.max_depth is not None and load.depth >= load.max_depth * share:
                expected.add((below, Threshold.DEPTH))
            if load.max_age_seconds is not None and load.oldest_seconds >= load.max_age_seconds * share:
                expected.add((below, Threshold.AGE))
        assert {(trip.queue, trip.threshold) for trip in found.get((job_id, priority), ())} == expected


@settings(max_examples=50, deadline=None)
@given(worlds(), st.data())
def test_everything_drains_once_the_slow_consumer_recovers(world: World, data: st.DataObject) -> None:
    slow = data.draw(st.sampled_from(world.jobs))
    stuck_for = data.draw(st.integers(0, 12))
    first = Counter({job_id: data.draw(st.integers(0, 6)) for job_id in world.jobs})
    waiting = Counter(first)
    # Each queue holds the step at which its tasks were made, oldest first.
    queues: dict[JobId, list[int]] = {job_id: [] for job_id in world.jobs}
    ended: Counter[JobId] = Counter()
    reached: tuple[Trip, ...] = ()
    step = 0
    while waiting.total() or any(queues.values()):
        assert step < 2_000, "the DAG is stuck"
        loads = [world.load(job_id, len(queue), step - queue[0] if queue else 0) for job_id, queue in queues.items()]
        reached = trips(loads, {trip.key for trip in reached})
        paused = pauses(reached, world.edges)
        for job_id in world.jobs:
            while waiting[job_id] and (job_id, world.priority[job_id]) not in paused and len(queues[job_id]) < 50:
                waiting[job_id] -= 1
                queues[job_id].append(step)
        for job_id in world.jobs:
            if queues[job_id] and not (job_id == slow and step < stuck_for):
                queues[job_id].pop(0)
                ended[job_id] += 1
                waiting.update(consumer for producer, consumer in world.edges if producer == job_id)
        step += 1
    for job_id in world.jobs:  # nothing was lost on the way, and nothing done twice
        from_above = sum(ended[producer] for producer, consumer in world.edges if consumer == job_id)
        assert ended[job_id] == first[job_id] + from_above


@settings(max_examples=50)
@given(worlds(), st.integers(1, 8))
def test_bulk_gives_way_before_normal(world: World, depth: int) -> None:
    found = pauses(trips(world.load(job_id, depth, 0) for job_id in world.jobs), world.edges)
    normal = {job_id for job_id, priority in found if priority is Priority.NORMAL}
    bulk = {job_id for job_id, priority in found if priority is Priority.BULK}
    assert normal <= bulk


def test_a_pause_says_which_queue_which_threshold_and_how_far() -> None:
    a, b, c = job(1), job(2), job(3)
    loads = [Load(a, 0, 0), Load(b, 0, 0), Load(c, 6, 70, max_depth=10, max_age_seconds=60)]
    age, depth = Trip(c, Threshold.AGE, Priority.BULK, 30, 70), Trip(c, Threshold.DEPTH, Priority.BULK, 5, 6)
    old = Trip(c, Threshold.AGE, Priority.NORMAL, 60, 70)
    assert pauses(trips(loads), [(a, b), (b, c)]) == {
        (a, Priority.BULK): (age, depth),
        (b, Priority.BULK): (age, depth),
        (a, Priority.NORMAL): (old,),
        (b, Priority.NORMAL): (old,),
    }


def test_a_cycle_of_datasets_pauses_no_job_by_its_own_queue() -> None:
    a, b = job(1), job(2)
    found = pauses(trips([Load(a, 9, 0, max_depth=1), Load(b, 0, 0)]), [(a, b), (b, a)])
    assert {job_id for job_id, _ in found} == {b}


@pytest.mark.parametrize(
    ("resume", "steps"),
    [
        (None, [(9, False), (10, True), (6, True), (5, True), (4, False), (9, False), (10, True)]),
        (8, [(10, True), (9, True), (8, True), (7, False), (9, False)]),
        (10, [(10, True), (9, False), (10, True)]),
        (0, [(10, True), (1, True), (0, False)]),
    ],
)
def test_producers_resume_below_the_resume_mark_and_not_before(
    resume: int | None, steps: list[tuple[int, bool]]
) -> None:
    b, reached = job(2), tuple[Trip, ...]()
    for depth, paused in steps:
        load = Load(b, depth, 0, max_depth=10, resume_depth=resume)
        reached = trips([load], {trip.key for trip in reached})
        assert any(trip.priority is Priority.NORMAL for trip in reached) is paused, depth
