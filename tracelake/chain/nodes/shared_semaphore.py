"""A number of places that coroutines share, whichever event loop of this process they run in.

A worker follows chains in one thread each, so a pool's limit cannot belong to one loop. First come, first served.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque


class SharedSemaphore:
    """Use as an async context manager: one place, until it is left. The number of places may change."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._used = 0
        self._peak = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """More than there are for a while, if their number was lowered."""
        return self._used

    @property
    def waiting(self) -> int:
        return len(self._line)

    def resize(self, count: int) -> None:
        with self._lock:
            self._count = count
            self._admit()

    def take_peak(self) -> int:
        """The most that were used or waited for at once, since the last call."""
        with self._lock:
            peak, self._peak = self._peak, self._used + len(self._line)
            return peak

    async def __aenter__(self) -> None:
        turn = self._take()
        if turn is None:
            return
        try:
            await turn
        except asyncio.CancelledError:
            if not self._left_the_line(turn):
                self._give()  # it was ours already
            raise

    async def __aexit__(self, *_: object) -> None:
        self._give()

    def _take(self) -> asyncio.Future[None] | None:
        with self._lock:
            self._peak = max(self._peak, self._used + len(self._line) + 1)
            if self._used < self._count:
                self._used += 1
                return None
            turn = asyncio.get_running_loop().create_future()
            self._line.append(turn)
            return turn

    def _left_the_line(self, turn: asyncio.Future[None]) -> bool:
        with self._lock:
            waits = turn in self._line
            if waits:
                self._line.remove(turn)
            return waits

    def _give(self) -> None:
        with self._lock:
            self._used -= 1
            self._admit()

    def _admit(self) -> None:
        while self._line and self._used < self._count:
            turn = self._line.popleft()
            try:
                turn.get_loop().call_soon_threadsafe(_wake, turn)
            except RuntimeError:  # the waiter is gone with its event loop
                continue
            self._used += 1


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
