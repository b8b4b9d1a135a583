"""What the verbs of the Dispatcher share: the state database, known jobs, the signer, signals for the loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from tracelake.capability.claims import Claims
from tracelake.dispatcher.credentials.url_keys import UrlKeys
from tracelake.dispatcher.outbox.wake_ups import WakeUps
from tracelake.dispatcher.signal import Signal
from tracelake.dispatcher.tasks.names import TaskNames
from tracelake.dispatcher.tasks.stop_signals import Stops
from tracelake.ports import CredentialMinter, ObjectStore, Queue, Signer
from tracelake.runtime.metrics import Metrics
from tracelake.settings import (
    RUNTIMES,
    BundleSettings,
    CredentialSettings,
    ObjectSettings,
    RuntimeSettings,
    TokenSettings,
)
from tracelake.store.clock import DatabaseClock
from tracelake.store.jobs import JobCache


@dataclass(frozen=True)
class Control:
    pool: asyncpg.Pool
    queue: Queue
    signer: Signer
    tokens: TokenSettings
    jobs: JobCache
    objects: ObjectStore
    replica: str
    """The name of this replica: outbox entries that it has taken carry it."""
    runtimes: Mapping[str, RuntimeSettings] = field(default_factory=lambda: RUNTIMES)
    """Where tasks run, and how they get there."""
    invokers: frozenset[str] = frozenset({"in_process", "queue"})
    """How tasks can be started from here; `function` only where functions can be called."""
    minted: Callable[[str, Claims], None] = lambda *_: None
    """Called with every token that is signed, so that the verifier need not check its signature."""
    clock: DatabaseClock = field(default_factory=DatabaseClock)
    """Times tokens; leases and retries are timed in SQL."""
    outbox_signal: Signal = field(default_factory=Signal)
    """Notified by every verb that writes an entry into the outbox."""
    wake_ups: WakeUps | None = field(default_factory=WakeUps)
    """Publishes wake-ups that a verb has committed. None: a verb returns before its commit, and leaves routing to the
    drain."""
    sources: Signal = field(default_factory=Signal)
    """Notified when a source is to be started or stopped."""
    leases: Signal = field(default_factory=Signal)
    """Notified when a lease may expire, or a retry be due, earlier than the loop expects."""
    stops: Stops = field(default_factory=Stops)
    """Notified when tasks that may be running are ended or paused: their workers wait for it."""
    metrics: Metrics = field(default_factory=Metrics)
    names: TaskNames = field(default_factory=TaskNames)
    """The jobs of tasks that were claimed here, for log lines about them."""
    steady: asyncpg.Pool | None = None
    places: ObjectSettings = field(default_factory=ObjectSettings)
    """The buckets: what is deployed and what attempts write for themselves."""
    minter: CredentialMinter | None = None
    """Mints the credentials of tasks; None: there are none."""
    credentials: CredentialSettings = field(default_factory=CredentialSettings)
    bundles: BundleSettings = field(default_factory=BundleSettings)
    """How large user code may be, and how long its URLs hold."""
    failure_alert: str = "task_failed"
    """The name of the alert that a task raises which has failed for good, where its organisation defines one."""
    max_workers_lost: int = 10
    """So many workers may fall silent while they run one task and nothing else; then it has failed for good."""
    task_url: str = ""
    """The address of the task API for runners; empty: URLs are given without a host."""
    home: Path | None = None
    """The home folder: if Postgres does not answer and its disk is full, the error names the disk."""
    url_keys: UrlKeys = field(default_factory=UrlKeys)

    @property
    def hot(self) -> asyncpg.Pool:
        """The pool of the hot path: its statements run on cached plans (`store.db.STEADY`)."""
        return self.steady or self.pool
