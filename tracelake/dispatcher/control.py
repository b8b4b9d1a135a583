"""What every verb of the Dispatcher stands on: the state database, known jobs, the signer, bells for the loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from tracelake.capability.claims import Claims
from tracelake.dispatcher.credentials.url_keys import UrlKeys
from tracelake.dispatcher.outbox.local_wake_ups import LocalWakeUps
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
    """Who we are among the replicas: what we have taken from the outbox carries this name."""
    runtimes: Mapping[str, RuntimeSettings] = field(default_factory=lambda: RUNTIMES)
    """Where tasks run, and how they get there."""
    invokers: frozenset[str] = frozenset({"in_process", "queue"})
    """What can make a task run here; `function` only where there is somebody to call."""
    minted: Callable[[str, Claims], None] = lambda *_: None
    """Called with every token we sign, so that our own verifier need not prove it again."""
    clock: DatabaseClock = field(default_factory=DatabaseClock)
    """Times tokens; leases and retries are timed in SQL."""
    outbox_signal: Signal = field(default_factory=Signal)
    """Rung by every verb that writes a entry into the outbox."""
    wake_ups: LocalWakeUps | None = field(default_factory=LocalWakeUps)
    """Wake-ups that a verb has written and committed, for who publishes them. None: what a verb writes is not committed
    when it returns, so it owes the routing instead."""
    sources: Signal = field(default_factory=Signal)
    """Rung when a source is to be started or stopped."""
    leases: Signal = field(default_factory=Signal)
    """Rung when a lease or retry may be due earlier than the reaper knows."""
    stops: Stops = field(default_factory=Stops)
    """Rung when tasks that may be running are ended or held: their workers wait for it."""
    metrics: Metrics = field(default_factory=Metrics)
    names: TaskNames = field(default_factory=TaskNames)
    """Whose the tasks are that were claimed here, for what is said about them."""
    steady: asyncpg.Pool | None = None
    places: ObjectSettings = field(default_factory=ObjectSettings)
    """The buckets: what is deployed and what attempts write for themselves."""
    minter: CredentialMinter | None = None
    """Who makes tasks' credentials; None: nobody does."""
    credentials: CredentialSettings = field(default_factory=CredentialSettings)
    bundles: BundleSettings = field(default_factory=BundleSettings)
    """How large user code may be, and how long its URLs hold."""
    failure_alert: str = "task_failed"
    """The name of the alert that a task raises which has failed for good, where its organisation defines one."""
    max_workers_lost: int = 10
    """So many workers may fall silent while they run one task and nothing else; then it has failed for good."""
    task_url: str = ""
    """Where runners find our task door; empty: URLs at it are given without a host."""
    home: Path | None = None
    """The home folder: when Postgres does not answer and its disk is full, callers are told of the disk."""
    url_keys: UrlKeys = field(default_factory=UrlKeys)

    @property
    def hot(self) -> asyncpg.Pool:
        """Where the statements of the hot path run: on plans that are kept (`store.db.STEADY`)."""
        return self.steady or self.pool
