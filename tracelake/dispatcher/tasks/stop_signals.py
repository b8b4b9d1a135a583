"""Workers wait here for a task of theirs to be ended or held, so that they need not wait for their next heartbeat.

What they are told is only that something of the kind happened: they ask for their own tasks with a heartbeat, which
alone says what holds. So nothing here has to be kept, or to be right: what is missed is heard with the next beat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from secrets import token_hex

from tracelake.wire.task_messages import StopsAnswer

GATHER_SECONDS = 0.05
"""Tasks that are ended one right after the other are told of together."""


class Stops:
    """A count, known by a mark that names this process: the mark of another, or of a former one, says nothing here."""

    def __init__(self) -> None:
        self._name = token_hex(4)
        self._count = 0
        self._waiting: set[asyncio.Event] = set()
        self._closed = False
        self._gathering: asyncio.TimerHandle | None = None
        self._notify_replicas: Callable[[], None] | None = None

    def notify(self) -> None:
        """Tasks that may be running were ended, or asked to stop, and that is committed."""
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._gathered)

    def wake(self) -> None:
        """As `ring`, said by another replica: its workers may wait here."""
        self._count += 1
        self._release()

    def notify_replicas(self, tell: Callable[[], None] | None) -> None:
        self._notify_replicas = tell

    async def after(self, mark: str, seconds: float) -> StopsAnswer:
        """Answers when there is news since `mark`, at the latest after so long; at once to who has no mark yet."""
        since = self._since(mark)
        if mark and self._count == since and not self._closed:
            await self._next(seconds)
        return StopsAnswer(mark=f"{self._name}-{self._count}", news=self._count != since)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Who waits is let go: the door is about to close."""
        self._closed = True
        self._release()

    def _since(self, mark: str) -> int:
        name, _, count = mark.partition("-")
        return int(count) if name == self._name and count.isdecimal() else self._count

    async def _next(self, seconds: float) -> None:
        rung = asyncio.Event()
        self._waiting.add(rung)
        try:
            async with asyncio.timeout(seconds):
                await rung.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(rung)

    def _release(self) -> None:
        for rung in self._waiting:
            rung.set()

    def _gathered(self) -> None:
        self._gathering = None
        self.wake()
        if self._notify_replicas is not None:
            self._notify_replicas()
