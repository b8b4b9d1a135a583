"""What every verb of the Dispatcher stands on: the state database, known jobs, the signer, and a bell for the loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import asyncpg

from trace_platform.capability.claims import Claims
from trace_platform.ports import ObjectStore, Queue, Signer
from trace_platform.settings import RUNTIMES, RuntimeSettings, TokenSettings
from trace_platform.store.clock import DatabaseClock
from trace_platform.store.jobs import JobCache


class Bell:
    """Rung when there is work for a loop; who waits hears of it at once, also if it rang before the wait."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    async def heard(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()


@dataclass(frozen=True)
class Control:
    pool: asyncpg.Pool
    queue: Queue
    signer: Signer
    tokens: TokenSettings
    jobs: JobCache
    objects: ObjectStore
    replica: str
    """Who we are among the replicas: what we have taken from the outbox carries this name."""
    runtimes: Mapping[str, RuntimeSettings] = field(default_factory=lambda: RUNTIMES)
    """Where tasks run, and how they get there."""
    minted: Callable[[str, Claims], None] = lambda *_: None
    """Told of every token we sign, so that our own verifier need not prove it again."""
    clock: DatabaseClock = field(default_factory=DatabaseClock)
    """Times tokens; leases and retries are timed in SQL."""
    owed: Bell = field(default_factory=Bell)
    """Rung by every verb that writes a promise into the outbox."""
    sources: Bell = field(default_factory=Bell)
    """Rung when a source is to be started or stopped."""
    leases: Bell = field(default_factory=Bell)
    """Rung when a lease or retry may be due earlier than the reaper knows."""
