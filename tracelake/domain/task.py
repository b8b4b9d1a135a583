"""The states of a task, the result of a refused claim, and the time of the next attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never


class TaskState(StrEnum):
    QUEUED = "Queued"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"


NEW: Final = "new"
"""Where a task comes from, in the metric of transitions."""
TRANSITIONS: Final[Mapping[TaskState, frozenset[TaskState]]] = {
    TaskState.QUEUED: frozenset({TaskState.RUNNING, TaskState.CANCELED}),
    TaskState.RUNNING: frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.QUEUED}),
    TaskState.COMPLETED: frozenset(),
    TaskState.FAILED: frozenset({TaskState.QUEUED, TaskState.COMPLETED, TaskState.CANCELED}),
    TaskState.CANCELED: frozenset(),
}
"""Every change of a task's state. Running to Queued: a claim under which nothing ran. From Failed: a retry, or the late
completion of an attempt whose lease had expired."""


class NotClaimedReason(StrEnum):
    """Why a claim gave nothing. The wire knows these four."""

    ALREADY_RUNNING = "AlreadyRunning"
    COMPLETED = "Completed"
    CANCELED = "Canceled"
    NOT_FOUND = "NotFound"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long attempt n+1 waits after attempt n: doubling from the first to the longest."""

    first_seconds: float = 30
    longest_seconds: float = 600


def why_not_claimed(state: TaskState | None) -> NotClaimedReason | None:
    """None if it can be claimed. Completed for a failed task: this wake-up has no work, and a retry sends its own."""
    match state:
        case None:
            return NotClaimedReason.NOT_FOUND
        case TaskState.QUEUED:
            return None
        case TaskState.RUNNING:
            return NotClaimedReason.ALREADY_RUNNING
        case TaskState.COMPLETED | TaskState.FAILED:
            return NotClaimedReason.COMPLETED
        case TaskState.CANCELED:
            return NotClaimedReason.CANCELED
        case _:
            assert_never(state)


def retry_delay(attempt: int, backoff: Backoff, chance: float) -> float:
    """Seconds to wait after `attempt` failed. `chance` is a random number in [0, 1).

    Between half the step and all of it: tasks that failed together do not come back together, and none comes back at
    once.
    """
    doublings = min(attempt - 1, 62)  # past this the cap has long been reached, and floats stay finite
    step = min(backoff.first_seconds * 2.0**doublings, backoff.longest_seconds)
    return step * (1 + chance) / 2
