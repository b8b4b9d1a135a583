"""Workers wait here for tasks to be canceled or paused, so that they need not wait for their next heartbeat.

The answer is only that some task was: a worker then sends heartbeats for its own tasks, which alone decide. So nothing
here has to be stored or exact: a missed signal costs the time until the next heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from secrets import token_hex

from tracelake.wire.task.lifecycle import StopsAnswer

GATHER_SECONDS = 0.05
"""How long tasks that are ended in a row are collected into one signal."""


class Stops:
    """A count with a mark that names this process: the mark of another process means nothing here."""

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
        """As `notify`, by another replica: workers that wait here may run its tasks."""
        self._count += 1
        self._release()

    def notify_replicas(self, notify: Callable[[], None] | None) -> None:
        self._notify_replicas = notify

    async def after(self, mark: str, seconds: float) -> StopsAnswer:
        """Answers when tasks were stopped since `mark`, after `seconds` at the latest; at once if there is no mark."""
        since = self._since(mark)
        if mark and self._count == since and not self._closed:
            await self._next(seconds)
        return StopsAnswer(mark=self.mark, changed=self._count != since)

    @property
    def mark(self) -> str:
        """To wait for what comes after now."""
        return f"{self._name}-{self._count}"

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Answers all that wait: the listener is about to close."""
        self._closed = True
        self._release()

    def _since(self, mark: str) -> int:
        name, _, count = mark.partition("-")
        return int(count) if name == self._name and count.isdecimal() else self._count

    async def _next(self, seconds: float) -> None:
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(event)

    def _release(self) -> None:
        for event in self._waiting:
            event.set()

    def _gathered(self) -> None:
        self._gathering = None
        self.wake()
        if self._notify_replicas is not None:
            self._notify_replicas()
