"""What wakes a loop. Rung here, it is heard here at once; if nobody here hears it, other replicas are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

UNTAKEN_SECONDS = 0.05
"""So long our own loop may take before others are told: it is busy, or stopped. Also the least time between two."""


class Signal:
    """Rung when there is work for a loop; who waits hears of it at once, also if it rang before the wait."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._attended = False
        self._sleeps_until: float | None = None
        self._soonest = inf
        self._check: asyncio.TimerHandle | None = None
        self._notify_replicas: Callable[[], None] | None = None

    def notify(self) -> None:
        """There is work, written and committed."""
        self._event.set()
        if self._notify_replicas is not None and self._check is None:
            self._check = asyncio.get_running_loop().call_later(UNTAKEN_SECONDS, self._unheard)

    def wake(self) -> None:
        """As `ring`, said by somebody who told the others as well."""
        self._event.set()

    def due_in(self, seconds: float) -> None:
        """There will be work: a loop that would sleep for longer than that is to sleep no longer."""
        at = asyncio.get_running_loop().time() + seconds
        if not self._attended:
            self.notify()
        elif self._sleeps_until is None:
            self._soonest = min(self._soonest, at)
        elif at < self._sleeps_until:
            self.notify()

    async def wait(self, seconds: float) -> None:
        """Returns when it was rung, at the latest after so long."""
        now = asyncio.get_running_loop().time()
        self._sleeps_until, self._soonest = min(now + seconds, self._soonest), inf
        try:
            async with asyncio.timeout_at(self._sleeps_until):
                await self._event.wait()
        except TimeoutError:
            pass
        finally:
            self._sleeps_until = None
        self._event.clear()

    @contextmanager
    def attended(self) -> Iterator[None]:
        """A loop of this process listens for as long as the block lasts."""
        self._attended = True
        try:
            yield
        finally:
            self._attended = False

    def notify_replicas(self, tell: Callable[[], None] | None) -> None:
        """What to do when it was rung and nobody here has heard it."""
        self._notify_replicas = tell

    def _unheard(self) -> None:
        self._check = None
        if self._event.is_set() and self._notify_replicas is not None:
            self._notify_replicas()
