"""Backpressure: which jobs get no new tasks for now, and why.

A queue that reaches its threshold pauses everything upstream of it; `bulk` work already at half the threshold, so that
catching up gives way first. A paused job gets no new tasks: its events wait, durable and in order. Tasks it already has
run on. That is why pauses cannot block each other: the queue that caused a pause drains whoever else is paused, and no
job is ever paused by its own queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from tracelake.domain.ids import JobId


class Priority(StrEnum):
    NORMAL = "normal"
    BULK = "bulk"


class Threshold(StrEnum):
    DEPTH = "max_queue_depth"
    AGE = "max_queue_age"


@dataclass(frozen=True, slots=True)
class Load:
    """One job's queue, its thresholds, and the priority of the job's own work."""

    job: JobId
    depth: int
    """Queued tasks."""
    oldest_seconds: float
    """Age of the oldest of them; of no account when there is none."""
    max_depth: int | None = None
    max_age_seconds: float | None = None
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True, order=True)
class PauseReason:
    """`queue` has reached `limit` (the threshold, or half of it for bulk work): it stands at `value`."""

    queue: JobId
    threshold: Threshold
    limit: float
    value: float


def pauses(loads: Iterable[Load], edges: Iterable[tuple[JobId, JobId]]) -> dict[JobId, tuple[PauseReason, ...]]:
    """Every paused job with all its reasons. An edge goes from the producing job to the one that reads."""
    by_job = {load.job: load for load in loads}
    producers = _producers(edges)
    found: dict[JobId, list[PauseReason]] = defaultdict(list)
    for load in by_job.values():
        if any(_reached(load, Priority.BULK)):  # the lower limit: without it nobody pauses
            for job in _upstream(load.job, producers):
                if job in by_job:
                    found[job] += _reached(load, by_job[job].priority)
    return {job: tuple(sorted(reasons)) for job, reasons in found.items() if reasons}


def _producers(edges: Iterable[tuple[JobId, JobId]]) -> Mapping[JobId, set[JobId]]:
    producers: dict[JobId, set[JobId]] = defaultdict(set)
    for producer, consumer in edges:
        producers[consumer].add(producer)
    return producers


def _reached(load: Load, priority: Priority) -> Iterator[PauseReason]:
    """The thresholds of this queue that are reached for work of this priority."""
    if load.depth == 0:
        return
    share = _share(priority)
    for threshold, value, most in (
        (Threshold.DEPTH, load.depth, load.max_depth),
        (Threshold.AGE, load.oldest_seconds, load.max_age_seconds),
    ):
        if most is not None and value >= most * share:
            yield PauseReason(load.job, threshold, most * share, value)


def _share(priority: Priority) -> float:
    match priority:
        case Priority.NORMAL:
            return 1
        case Priority.BULK:
            return 0.5
        case _:
            assert_never(priority)


def _upstream(job: JobId, producers: Mapping[JobId, set[JobId]]) -> set[JobId]:
    """Everything that feeds it, never itself: not even where datasets of several DAGs form a cycle."""
    seen: set[JobId] = set()
    waiting = [job]
    while waiting:
        fresh = producers.get(waiting.pop(), set()) - seen
        seen |= fresh
        waiting += fresh
    return seen - {job}
