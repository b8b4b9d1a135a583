"""Backpressure: which jobs get no new tasks for now, and why.

A queue that reaches a limit pauses everything upstream of it, until it has fallen below its resume mark. The limit is
the job's threshold; for `bulk` work half of it, so that catching up gives way first. A paused job gets no new tasks:
its events wait, durable and in order. Tasks that it already has are run. So pauses cannot block each other: the queue
that caused a pause drains whoever else is paused, and no job is ever paused by its own queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, assert_never

from tracelake.domain.ids import JobId


class Priority(StrEnum):
    NORMAL = "normal"
    BULK = "bulk"


class Threshold(StrEnum):
    DEPTH = "depth"
    AGE = "age"


RESUME_SHARE = 0.5
"""Of a limit: producers resume when the queue has fallen below it, unless the job says otherwise."""


@dataclass(frozen=True, slots=True)
class Load:
    """One job's queue, and its thresholds."""

    job: JobId
    depth: int
    """Queued tasks."""
    oldest_seconds: float
    """Age of the oldest of them; of no account when there is none."""
    max_depth: int | None = None
    max_age_seconds: float | None = None
    resume_depth: int | None = None
    resume_age_seconds: float | None = None


class TripKey(NamedTuple):
    """A limit of a queue, for work of one priority."""

    queue: JobId
    threshold: Threshold
    priority: Priority


@dataclass(frozen=True, slots=True, order=True)
class Trip:
    """`queue` has reached `limit` for work of `priority`, and has not fallen below its resume mark since."""

    queue: JobId
    threshold: Threshold
    priority: Priority
    limit: float
    value: float

    @property
    def key(self) -> TripKey:
        return TripKey(self.queue, self.threshold, self.priority)


def trips(loads: Iterable[Load], former: Container[TripKey] = ()) -> tuple[Trip, ...]:
    """The limits that are reached now, and the `former` ones that have not been cleared."""
    return tuple(sorted(trip for load in loads for trip in _trips(load, former)))


def pauses(
    reached: Iterable[Trip], edges: Iterable[tuple[JobId, JobId]]
) -> dict[tuple[JobId, Priority], tuple[Trip, ...]]:
    """All causes of each paused job and priority. An edge goes from the producing job to the one that reads."""
    producers = _producers(edges)
    found: dict[tuple[JobId, Priority], list[Trip]] = defaultdict(list)
    for trip in reached:
        for job in _upstream(trip.queue, producers):
            found[job, trip.priority].append(trip)
    return {paused: tuple(sorted(causes)) for paused, causes in found.items()}


def _trips(load: Load, former: Container[TripKey]) -> Iterator[Trip]:
    if load.depth == 0:
        return
    for threshold, value, most, resume in (
        (Threshold.DEPTH, load.depth, load.max_depth, load.resume_depth),
        (Threshold.AGE, load.oldest_seconds, load.max_age_seconds, load.resume_age_seconds),
    ):
        if most is None:
            continue
        mark = most * RESUME_SHARE if resume is None else resume
        for priority in Priority:
            share = _share(priority)
            key = TripKey(load.job, threshold, priority)
            if value >= most * share or (key in former and value >= mark * share):
                yield Trip(*key, most * share, value)


def _share(priority: Priority) -> float:
    match priority:
        case Priority.NORMAL:
            return 1
        case Priority.BULK:
            return 0.5
        case _:
            assert_never(priority)


def _producers(edges: Iterable[tuple[JobId, JobId]]) -> Mapping[JobId, set[JobId]]:
    producers: dict[JobId, set[JobId]] = defaultdict(set)
    for producer, consumer in edges:
        producers[consumer].add(producer)
    return producers


def _upstream(job: JobId, producers: Mapping[JobId, set[JobId]]) -> set[JobId]:
    """Everything that feeds it, never itself: not even where datasets of several DAGs form a cycle."""
    seen: set[JobId] = set()
    waiting = [job]
    while waiting:
        fresh = producers.get(waiting.pop(), set()) - seen
        seen |= fresh
        waiting += fresh
    return seen - {job}
