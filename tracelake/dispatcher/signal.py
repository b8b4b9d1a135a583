"""Wakes a loop of this process at once; if that loop does not react, the other replicas are notified."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from tracelake.dispatcher.tasks.stop_signals import Stops
from tracelake.runtime.metrics import Metrics

UNTAKEN_SECONDS = 0.05
"""How long the loop of this process may take before others are notified. Also the least time between two."""


class Signal:
    """Notified when there is work for a loop; a notification before the wait counts too."""

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
            self._check = asyncio.get_running_loop().call_later(UNTAKEN_SECONDS, self._check_loop)

    def wake(self) -> None:
        """As `notify`, by a caller that has notified the other replicas itself."""
        self._event.set()

    def due_in(self, seconds: float) -> None:
        """There will be work: a loop that would sleep longer wakes then."""
        at = asyncio.get_running_loop().time() + seconds
        if not self._attended:
            self.notify()
        elif self._sleeps_until is None:
            self._soonest = min(self._soonest, at)
        elif at < self._sleeps_until:
            self.notify()

    async def wait(self, seconds: float) -> None:
        """Returns when notified, at the latest after `seconds`."""
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
        """A loop of this process waits for it while the block runs."""
        self._attended = True
        try:
            yield
        finally:
            self._attended = False

    def notify_replicas(self, notify: Callable[[], None] | None) -> None:
        """What to call when it was notified and the loop here has not reacted."""
        self._notify_replicas = notify

    def _check_loop(self) -> None:
        self._check = None
        if self._event.is_set() and self._notify_replicas is not None:
            self._notify_replicas()


class Changed:
    """Counts changes of what processes keep in memory, at this replica and the others: it is read again then."""

    def __init__(self) -> None:
        self.count = 0
        self._notify_replicas: Callable[[], None] | None = None

    def notify(self) -> None:
        """A change is committed."""
        self.wake()
        if self._notify_replicas is not None:
            self._notify_replicas()

    def wake(self) -> None:
        self.count += 1

    def notify_replicas(self, notify: Callable[[], None] | None) -> None:
        self._notify_replicas = notify


@dataclass(frozen=True)
class AfterCommit:
    """What verbs do after their commit: they notify the loops that have work now, and count."""

    outbox: Signal = field(default_factory=Signal)
    """An entry was written into the outbox."""
    flow: Signal = field(default_factory=Signal)
    """A job was resumed: what waited for it can become tasks."""
    sources: Signal = field(default_factory=Signal)
    """A source is to be started or stopped."""
    leases: Signal = field(default_factory=Signal)
    """A lease may expire, or a retry be due, earlier than the loop expects."""
    catch_up: Signal = field(default_factory=Signal)
    """A version was activated: its jobs may lack data that is there."""
    backfills: Signal = field(default_factory=Signal)
    """A backfill began or continues."""
    releases: Signal = field(default_factory=Signal)
    """A release is being built."""
    stops: Stops = field(default_factory=Stops)
    """Tasks that may be running were ended or paused: their workers wait for it."""
    schedules: Stops = field(default_factory=Stops)
    """Schedules were changed, or their sources paused or resumed: schedulers wait for it."""
    comparisons: Stops = field(default_factory=Stops)
    """Comparisons of a release were requested: Query services wait for it."""
    service_tokens: Changed = field(default_factory=Changed)
    """A token of a service was created or revoked."""
    metrics: Metrics = field(default_factory=Metrics)
