"""Gives messages their turns, so that groups take turns (`Outgoing.group`) however many messages each has.

A queue is received in the order of turns. The front is the turn that is received next. The next message of an
organisation that has none waiting goes to the front; further ones go one step behind each other, so in every step of
the queue each organisation has one message. Within an organisation its jobs share these steps: the messages of a job
are as many steps apart as jobs of the organisation have messages waiting.

What is remembered is this publisher's: with several, an organisation has one message of each in a step. A job that
begins while others of its organisation have a backlog comes between their messages, and does not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tracelake.ports import QueueGroup

STEP: Final = 100
"""Microseconds of turns. A queue whose organisations each publish less than one message in a step has its turns by
time; so after a flood the front is not ahead of the time, unless 10,000 messages a second are received."""

PRUNED_EVERY: Final = 256
"""After so many publishes, what has been received since is forgotten."""


@dataclass
class _Organisation:
    entry: int = 0
    """The turn of the last message of a job that had none waiting."""
    jobs: dict[str, int] = field(default_factory=dict)
    """The turn of the last message of each job."""


@dataclass(frozen=True)
class Placed:
    """For each message: its turn is `offset` behind `base`, or behind the front if that is later."""

    bases: list[int]
    offsets: list[int]
    begins: list[bool]
    """Whether it is of a job that had none waiting."""


class Turns:
    """Of one queue."""

    def __init__(self) -> None:
        self.front = 0
        """As of the last publish."""
        self._organisations: dict[str, _Organisation] = {}
        self._publishes = 0

    def place(self, groups: Sequence[QueueGroup | None]) -> Placed:
        """Where the messages of one publish go, by what was remembered before it."""
        placed, batch = Placed([], [], []), dict[str, _Batch]()
        for group in groups:
            organisation, job = group or ("", "")
            if organisation not in batch:
                batch[organisation] = _Batch(self._organisations.get(organisation), self.front)
            base, offset, begins = batch[organisation].place(job)
            placed.bases.append(base)
            placed.offsets.append(offset)
            placed.begins.append(begins)
        return placed

    def published(self, groups: Sequence[QueueGroup | None], placed: Placed, front: int) -> None:
        """Remembers where they went. `front`: of the queue when they were published."""
        self.front = front
        places = zip(groups, placed.bases, placed.offsets, placed.begins, strict=True)
        for group, base, offset, begins in places:
            name, job = group or ("", "")
            known = self._organisations.setdefault(name, _Organisation())
            turn = max(front, base) + offset
            known.jobs[job] = max(known.jobs.get(job, 0), turn)
            if begins:
                known.entry = max(known.entry, turn)
        self._publishes += 1
        if self._publishes % PRUNED_EVERY == 0:
            self._prune()

    def _prune(self) -> None:
        """Forgets what has been received."""
        for name, known in list(self._organisations.items()):
            known.jobs = {job: turn for job, turn in known.jobs.items() if turn >= self.front}
            if not known.jobs:
                del self._organisations[name]


class _Batch:
    """The messages of one organisation in one publish."""

    def __init__(self, known: _Organisation | None, front: int) -> None:
        self._known = known or _Organisation()
        self._last = {job: (turn, 0) for job, turn in self._known.jobs.items() if turn >= front}
        self._entries = 0

    def place(self, job: str) -> tuple[int, int, bool]:
        last = self._last.get(job)
        if last is None:
            place = self._known.entry + STEP, self._entries * STEP
            self._entries += 1
        else:
            base, offset = last
            place = base, offset + len(self._last) * STEP
        self._last[job] = place
        return *place, last is None
