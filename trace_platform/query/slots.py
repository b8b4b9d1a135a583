"""So many questions run at once, so many wait their turn, and not for long: the rest are told to come again."""

from __future__ import annotations

import asyncio

from trace_platform.errors import Busy


class Slots:
    def __init__(self, running: int, waiting: int, seconds: float) -> None:
        self._free = asyncio.Semaphore(running)
        self._room = waiting
        self._seconds = seconds
        self.waiting = 0
        self.running = 0

    async def take(self) -> None:
        if self._free.locked() and self.waiting >= self._room:
            raise _busy()
        self.waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._free.acquire()
        except TimeoutError:
            raise _busy() from None
        finally:
            self.waiting -= 1
        self.running += 1

    def give_back(self) -> None:
        self.running -= 1
        self._free.release()


def _busy() -> Busy:
    return Busy("as many questions run and wait as can be served", hint="ask again in a moment")
