"""Wake-ups from where they were written to where they are published, within one process.

They stand in the outbox as taken by this replica: if it dies with them, they are taken again when their time runs out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WakeUp:
    """A entry in our hands: this task is to be woken on its runtime's queue."""

    entry: int
    payload: str


class LocalWakeUps:
    """Given by who has committed them, taken once."""

    def __init__(self) -> None:
        self._told: Callable[[], None] | None = None
        self._waiting: list[WakeUp] = []
        self._aside: list[WakeUp] = []

    def tell(self, told: Callable[[], None] | None) -> None:
        """Whom to call when there is something."""
        self._told = told

    def give(self, wake_ups: Sequence[WakeUp]) -> None:
        self._waiting += wake_ups
        if wake_ups and self._told is not None:
            self._told()

    def take(self) -> list[WakeUp]:
        taken, self._waiting = self._waiting, []
        return taken

    def put_aside(self, wake_ups: Sequence[WakeUp]) -> None:
        """They need more than a message: for the drain."""
        self._aside += wake_ups

    def take_all(self) -> list[WakeUp]:
        taken, self._aside = [*self._aside, *self.take()], []
        return taken
