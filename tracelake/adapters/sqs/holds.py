"""Which messages this process holds, and until when: SQS itself accepts receipts of deliveries that have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from tracelake.ports import MessageId, Receipt

SWEEP_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Hold:
    queue: str
    message: MessageId
    until: float


class Holds:
    """By receipt. A message that is delivered again, also early, is held by its newest receipt alone."""

    def __init__(self) -> None:
        self._held: dict[Receipt, Hold] = {}
        self._newest: dict[tuple[str, MessageId], Receipt] = {}
        self._next_sweep = 0.0

    def add(self, queue: str, message: MessageId, receipt: Receipt, until: float) -> None:
        self._sweep()
        if former := self._newest.get((queue, message)):
            self._held.pop(former, None)
        self._newest[queue, message] = receipt
        self._held[receipt] = Hold(queue, message, until)

    def held(self, queue: str, receipts: Iterable[Receipt]) -> list[Receipt]:
        """Those of this queue that hold their message now, each once."""
        now = asyncio.get_running_loop().time()
        known = ((receipt, self._held.get(receipt)) for receipt in dict.fromkeys(receipts))
        return [receipt for receipt, hold in known if hold and hold.queue == queue and hold.until > now]

    def extend(self, receipt: Receipt, until: float) -> None:
        if hold := self._held.get(receipt):
            self._held[receipt] = replace(hold, until=until)

    def remove(self, receipts: Iterable[Receipt]) -> None:
        for receipt in receipts:
            hold = self._held.pop(receipt, None)
            if hold and self._newest.get((hold.queue, hold.message)) == receipt:
                del self._newest[hold.queue, hold.message]

    def _sweep(self) -> None:
        """Forgets what was neither acknowledged nor given back."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_SECONDS
            self.remove([receipt for receipt, hold in self._held.items() if hold.until <= now])
