"""How many workers of a runtime are wanted: enough for what is there, and none where nothing has come for long enough.

A pure function of the load and of what runs, for whoever starts and stops workers: the supervisor of `trace up`, or a
service's desired count.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What the tasks of one runtime need."""

    queued: int
    """Tasks that can be claimed."""
    leased: int
    """Tasks that run. Always-on sources are not among them: they take no slot."""
    sources: int = 0
    """Always-on sources that run or are to be started: they need a worker, however many there are."""
    next_retry_seconds: float | None = None
    """Until the next task is queued again; None: no task waits for its retry."""
    keep_warm_seconds: float | None = None
    """The longest `idle_timeout` of the runtime's jobs; None: a job wants a worker to be there always."""

    @property
    def is_idle(self) -> bool:
        return not (self.queued or self.leased or self.sources)


@dataclass(frozen=True, slots=True)
class WorkerFleet:
    """What runs, and within which limits."""

    workers: int
    """Those that take tasks; not those that drain."""
    least: int
    most: int
    slots: int
    """Of one worker."""
    idle_seconds: float
    """How long the runtime has been idle."""
    spare_seconds: float
    """How long fewer workers would have been enough."""
    stop_after_seconds: float
    """How long that must be so before one is stopped: starting one takes a while."""


def wanted_workers(load: WorkerLoad, fleet: WorkerFleet) -> int:
    """More at once, when there is work for them; fewer only after they were not needed for a while."""
    needed = min(max(needed_workers(load, fleet), fleet.least), fleet.most)
    if needed >= fleet.workers or fleet.spare_seconds >= fleet.stop_after_seconds:
        return needed
    return fleet.workers


def needed_workers(load: WorkerLoad, fleet: WorkerFleet) -> int:
    """How many would be enough now, whatever the limits are."""
    for_tasks = -(-(load.queued + load.leased) // fleet.slots)
    return max(for_tasks, 0 if _may_be_none(load, fleet) else 1)


def _may_be_none(load: WorkerLoad, fleet: WorkerFleet) -> bool:
    """Whether no job wants that a worker waits for it. One that is stopped stays so until there is work."""
    if load.queued or load.leased or load.sources:
        return False
    if load.next_retry_seconds is not None and load.next_retry_seconds <= fleet.stop_after_seconds:
        return False
    if load.keep_warm_seconds is None:
        return False
    return fleet.workers == 0 or fleet.idle_seconds >= load.keep_warm_seconds
