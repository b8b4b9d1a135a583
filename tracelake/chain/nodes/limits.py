"""How many requests to a pool's nodes may be under way, and how many calls a second each node may get.

The limits are those of the pool, or a share of them that this process has leased: a share ends when its time is over,
and with it every request that is under way. `limits_server.py` lets other processes of the same worker use it.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from tracelake.chain.nodes.shared_semaphore import SharedSemaphore
from tracelake.errors import ProviderUnavailable

_LOOK_SECONDS = 0.05
"""How often those who wait look whether a share without calls has got some."""


class Permits(Protocol):
    def permit(self, place: int, calls: int, counted_for: str = "") -> AbstractAsyncContextManager[None]:
        """For one request of so many calls to the endpoint at this place: waits until it may be sent."""
        ...


class CallCounter:
    """Calls to nodes, by whom they are counted for; only of those for whom `begin` was called."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def begin(self, counted_for: str) -> None:
        with self._lock:
            self._calls[counted_for] = 0

    def add(self, counted_for: str, calls: int) -> None:
        with self._lock:
            if counted_for in self._calls:
                self._calls[counted_for] += calls

    def end(self, counted_for: str) -> int:
        with self._lock:
            return self._calls.pop(counted_for, 0)


call_counter = CallCounter()
"""Of this process: a worker's, whose executors ask it for each request."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a process does with its share."""

    held: int
    """Requests that may be under way; more if more are, because it was lowered."""
    rate: float | None
    used: int
    wanted: int
    """The most that were under way or waited at once, since this was last read."""


class Limits:
    """Of one pool, for all threads of this process. `rate`: calls a second to each endpoint; None: no limit."""

    def __init__(self, in_flight: int, rate: float | None, *, name: str = "", until: float = math.inf) -> None:
        self.name = name
        self._slots = SharedSemaphore(in_flight)
        self.in_flight, self._rate, self._until = in_flight, rate, until
        self._lease = 0
        """Counts leases that began after the one before was over: what began under an older one has ended with it."""
        self._free_at: dict[int, float] = {}
        self._lock = threading.Lock()

    def set(self, in_flight: int, rate: float | None, until: float) -> None:
        """A share until this moment of the monotonic clock; it replaces the last one."""
        with self._lock:
            self._lease += time.monotonic() >= self._until
            self.in_flight, self._rate, self._until = in_flight, rate, until
        self._slots.resize(in_flight)

    def use(self) -> Use:
        used, wanted = self._slots.used, self._slots.take_peak()
        return Use(max(self.in_flight, used), self._rate, used, wanted)

    @property
    def lacks(self) -> bool:
        """Whether requests wait that a larger share would let through."""
        return self._slots.waiting > 0

    @asynccontextmanager
    async def permit(self, place: int, calls: int, counted_for: str = "") -> AsyncIterator[None]:
        while True:
            async with self._slots:
                lease = self._lease
                if await self._turn(place, calls, lease):
                    call_counter.add(counted_for, calls)
                    async with self._while_leased(lease):
                        yield
                    return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _turn(self, place: int, calls: int, lease: int) -> bool:
        """Waits until so many calls fit under the rate; false if the lease ended meanwhile.

        More calls than a second's are sent when their time is over but for a second, so that no second has more.
        """
        while (wait := self._book(place, calls)) > 0:
            await asyncio.sleep(wait)
            if not self._is_leased(lease):
                return False
        await asyncio.sleep(-wait)
        return self._is_leased(lease)

    def _book(self, place: int, calls: int) -> float:
        """Seconds until it may be tried again; once booked, minus the seconds until it may be sent."""
        with self._lock:
            now, rate = time.monotonic(), self._rate
            if now >= self._until or (rate is not None and rate <= 0):
                return _LOOK_SECONDS
            if rate is None:
                return 0.0
            free_at = self._free_at.get(place, now)
            if free_at > now:
                return free_at - now
            self._free_at[place] = now + calls / rate
            return -max(calls / rate - 1, 0.0)

    def _is_leased(self, lease: int) -> bool:
        return self._lease == lease and time.monotonic() < self._until

    @asynccontextmanager
    async def _while_leased(self, lease: int) -> AsyncIterator[None]:
        """What is under way ends with the share: someone else may have it then."""
        loop = asyncio.get_running_loop()
        async with ended_early(self.name) as deadline:
            watch: asyncio.TimerHandle | None = None

            def look() -> None:
                nonlocal watch
                if not self._is_leased(lease):
                    deadline.reschedule(loop.time())
                elif self._until < math.inf:
                    watch = loop.call_later(self._until - time.monotonic(), look)

            look()
            try:
                yield
            finally:
                if watch is not None:
                    watch.cancel()


@asynccontextmanager
async def ended_early(name: str) -> AsyncIterator[asyncio.Timeout]:
    try:
        async with asyncio.timeout(None) as deadline:
            yield deadline
    except TimeoutError:
        if not deadline.expired():
            raise
        raise share_is_over(name) from None


def share_is_over(name: str) -> ProviderUnavailable:
    return ProviderUnavailable(
        f"this worker's share of the limits of pool {name} has expired",
        where=f"rpc_pools.{name}",
        hint="the Dispatcher has not renewed it; requests go on when it answers",
    )
