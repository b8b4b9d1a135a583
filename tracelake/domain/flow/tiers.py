"""Priority tiers: each runtime has a queue for each, and those who take work take by weight, never in strict order.

Strict order would starve `bulk` for as long as there is `normal` work. Taking in turns alone would let a flood of
`bulk` hold every slot when `normal` work comes, so some slots are reserved for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tracelake.domain.flow.pressure import Priority

BUFFER_QUEUE: Final = "buffer"
"""The queue of batches for the sink, which have no priority."""
BULK_SUFFIX: Final = "-bulk"


def queue_of_tier(queue: str, tier: Priority) -> str:
    """The queue of a runtime that carries this tier. The normal one has the runtime's name for it."""
    return queue if tier is Priority.NORMAL else queue + BULK_SUFFIX


def queue_names(of_runtimes: Iterable[str]) -> list[str]:
    """Every queue of a deployment whose runtimes have these queues."""
    return [*(queue_of_tier(name, tier) for name in of_runtimes for tier in Priority), BUFFER_QUEUE]


class Wanted(NamedTuple):
    """How much to take of a tier, at most."""

    tier: Priority
    most: int


@dataclass
class TierShares:
    """Decides how much to take of which tier first, by what was taken before. It belongs to one taker.

    While both tiers have work, `weight` of normal are taken for each one of bulk. What one tier leaves free, the other
    takes, but for `reserved` slots, which bulk never takes. A tier that has no work saves up no claim for later.
    """

    slots: int
    weight: int
    reserved: int
    _normal_taken: int = 0
    """Since bulk had its last turn."""

    def want(self, free: int, bulk_running: int) -> list[Wanted]:
        """In the order in which to ask. `free`: how much there is room for in all."""
        room = min(free, self.bulk_slots - bulk_running)
        normal = Wanted(Priority.NORMAL, free)
        if room <= 0:
            return [normal]
        due = min(self._normal_taken // self.weight, self._share - bulk_running)
        if due > 0:
            return [Wanted(Priority.BULK, min(due, room)), normal]
        return [normal, Wanted(Priority.BULK, room)]

    def took(self, wanted: list[Wanted], normal: int, bulk: int) -> None:
        """How much came of it. A tier that had less than it could have gets nothing later in its place."""
        first, *others = wanted
        if first.tier is Priority.BULK:
            had_enough = bulk == first.most
            self._normal_taken = self._normal_taken - bulk * self.weight + normal if had_enough else 0
        elif others:
            self._normal_taken = self._normal_taken + normal if normal == first.most else 0

    @property
    def bulk_slots(self) -> int:
        """How many bulk may take at all: always one, so that it is never shut out."""
        return max(1, self.slots - self.reserved)

    @property
    def _share(self) -> int:
        """How many bulk holds while normal work waits, however long its tasks are."""
        return max(1, self.slots // (self.weight + 1))
