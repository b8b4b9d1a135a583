"""A number of places that coroutines share, whichever event loop of this process they run in.

A worker follows chains in one thread each, so a pool's limit cannot belong to one loop. First come, first served.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque


class SharedSemaphore:
    """Use as an async context manager: one place, until it is left."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._line: deque[asyncio.Future[None]] = deque()
        self._lock = threading.Lock()

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
            if self._free:
                self._free -= 1
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
            while self._line:
                turn = self._line.popleft()
                try:
                    turn.get_loop().call_soon_threadsafe(_wake, turn)
                except RuntimeError:  # the waiter is gone with its event loop
                    continue
                return
            self._free += 1


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
