"""What becomes of the slots of a cron source: each one fires, or is recorded with the reason why it did not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from itertools import islice
from typing import Final, assert_never

from tracelake.domain.sources.schedule import Schedule

MOST_AT_ONCE: Final = 1_000
"""Slots in one decision; after a long standstill there are several decisions, one after the other."""
ON_TIME: Final = timedelta(minutes=1)
"""A slot that is decided within this time is not late."""


class Overlap(StrEnum):
    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    ALLOW = "allow"


class SlotReason(StrEnum):
    """Why a slot did not fire."""

    MISSED = "missed"
    """Nothing ran when it was due, and `catch_up` is `none`."""
    BEYOND_CATCH_UP = "beyond_catch_up"
    """It was due longer ago than `catch_up`."""
    OVERLAP = "overlap"
    """A task of an earlier slot had not ended."""
    PAUSED = "paused"
    """The source was paused, by a user or after a failure."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the DAG says about a cron source."""

    schedule: Schedule
    overlap: Overlap = Overlap.SKIP
    catch_up: timedelta | None = None
    delay: timedelta = timedelta()
    """How long after its slots this source fires."""


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """The state of a cron source when it is decided."""

    now: datetime
    decided_until: datetime
    """All slots up to here are decided."""
    paused: bool = False
    open_tasks: int = 0
    """Tasks of earlier slots that have not ended."""


@dataclass(frozen=True, slots=True)
class Slot:
    at: datetime
    reason: SlotReason | None = None
    """None: it fires."""


@dataclass(frozen=True, slots=True)
class Decision:
    slots: tuple[Slot, ...]
    decided_until: datetime
    next_due: datetime | None
    """When the next slot is to be decided; None: never."""


def decide_slots(rules: Rules, standing: ScheduleState) -> Decision:
    """All slots that are due, in their order."""
    slots: list[Slot] = []
    open_tasks, until = standing.open_tasks, standing.decided_until
    for at in rules.schedule.slots_after(standing.decided_until):
        if at + rules.delay > standing.now:
            return Decision(tuple(slots), until, at + rules.delay)
        if len(slots) == MOST_AT_ONCE:
            return Decision(tuple(slots), until, standing.now)
        reason = _why_not(rules, standing, at + rules.delay, open_tasks)
        open_tasks += reason is None
        until = at
        slots.append(Slot(at, reason))
    return Decision(tuple(slots), until, None)


def next_slots(rules: Rules, after: datetime, count: int) -> list[datetime]:
    """The slots whose turn comes after that instant."""
    return list(islice(rules.schedule.slots_after(after - rules.delay), count))


def delay_of(name: str, jitter_seconds: int) -> timedelta:
    """A fixed part of the jitter that follows from the source's name: it spreads sources, and keeps their order."""
    share = int.from_bytes(sha256(name.encode()).digest()[:8], "big") / 2**64
    return timedelta(seconds=int(share * (jitter_seconds + 1)))


def _why_not(rules: Rules, standing: ScheduleState, due: datetime, open_tasks: int) -> SlotReason | None:
    late = standing.now - due
    if standing.paused:
        return SlotReason.PAUSED
    if late > max(rules.catch_up or ON_TIME, ON_TIME):
        return SlotReason.MISSED if rules.catch_up is None else SlotReason.BEYOND_CATCH_UP
    return SlotReason.OVERLAP if open_tasks >= _most_open(rules.overlap, open_tasks) else None


def _most_open(overlap: Overlap, open_tasks: int) -> int:
    match overlap:
        case Overlap.SKIP:
            return 1
        case Overlap.BUFFER_ONE:
            return 2
        case Overlap.BUFFER_ALL | Overlap.ALLOW:
            return open_tasks + 1
        case _:
            assert_never(overlap)
