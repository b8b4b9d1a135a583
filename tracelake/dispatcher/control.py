"""What a Dispatcher is built of, and how the verbs that need many parts are built. Processes and routes hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import asyncpg

from tracelake.capability.claims import Claims
from tracelake.dispatcher.audit.credentials import batched_entries
from tracelake.dispatcher.bundles.url import BundleUrls
from tracelake.dispatcher.credentials.mint import CredentialMint
from tracelake.dispatcher.events.route import Router
from tracelake.dispatcher.maintenance.expire_leases import ExpireLeases
from tracelake.dispatcher.outbox.dispatch import EntryDispatcher
from tracelake.dispatcher.outbox.drain import Drain
from tracelake.dispatcher.outbox.wake_ups import WakeUps
from tracelake.dispatcher.read_gauges import Gauges
from tracelake.dispatcher.runtimes.call_functions import CallFunctions, CallKind, JobRunner
from tracelake.dispatcher.runtimes.known import runtime_specs
from tracelake.dispatcher.runtimes.run_in_process import run_in_process
from tracelake.dispatcher.signal import AfterCommit, Signal
from tracelake.dispatcher.sources.accept_hooks import Hooks
from tracelake.dispatcher.sources.fire import FireSource
from tracelake.dispatcher.tasks.claim import Claimer, Payloads
from tracelake.dispatcher.tasks.completion.complete import Announcer, Completer
from tracelake.dispatcher.tasks.completion.complete_batch import BatchOptions
from tracelake.dispatcher.tasks.grant import TokenMint
from tracelake.dispatcher.tasks.names import TaskNames
from tracelake.dispatcher.tasks.renew_lease import Renewer
from tracelake.dispatcher.versions.reuse_outputs import ReuseOutputs
from tracelake.domain.access.seal import Seal
from tracelake.domain.bundle.rules import BundleLimits
from tracelake.domain.dag.catalog import RuntimeSpec
from tracelake.domain.flow.tiers import TierShares
from tracelake.ports import CredentialMinter, Invoker, ObjectStore, Queue, Signer
from tracelake.runtime.metrics import Metrics
from tracelake.settings import (
    RUNTIMES,
    BundleSettings,
    CredentialSettings,
    FlowSettings,
    LoginRule,
    ObjectSettings,
    RuntimeSettings,
    TokenSettings,
)
from tracelake.store.clock import DatabaseClock
from tracelake.store.jobs import JobCache
from tracelake.wire.internal.refusals import RefusalCounts


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
    after_commit: AfterCommit = field(default_factory=AfterCommit)
    wake_ups: WakeUps | None = field(default_factory=WakeUps)
    """Publishes wake-ups that a verb has committed. None: a verb returns before its commit, and leaves routing to the
    drain."""
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
    flow: FlowSettings = field(default_factory=FlowSettings)
    """How the priorities share the places for functions."""
    task_url: str = ""
    """The address of the task API for runners; empty: URLs are given without a host."""
    hook_secrets: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    """Those that sign calls to webhook sources, by name in lower case."""
    login_rules: Mapping[str, LoginRule] = field(default_factory=dict)
    """Who becomes a user at the first login, by name."""
    refusals: RefusalCounts = field(default_factory=RefusalCounts)
    """Of services' tokens, until they are stored in the audit."""
    seal: Seal = field(default_factory=Seal)
    """Encrypts and decrypts the secrets of organisations."""
    epoch: int = 0
    """How often the state database was restored from a backup; in every token."""
    home: Path | None = None
    """The home folder: if Postgres does not answer and its disk is full, the error names the disk."""

    @property
    def hot(self) -> asyncpg.Pool:
        """The pool of the hot path: its statements run on cached plans (`store.db.STEADY`)."""
        return self.steady or self.pool

    @property
    def metrics(self) -> Metrics:
        return self.after_commit.metrics

    @cached_property
    def gauges(self) -> Gauges:
        return Gauges(self.pool, self.queue, self.runtimes, self.metrics)

    def runtime_specs(self) -> Mapping[str, RuntimeSpec]:
        return runtime_specs(self.runtimes, self.invokers)

    def token_mint(self) -> TokenMint:
        return TokenMint(self.signer, self.tokens, self.clock, self.places.scratch_bucket, self.epoch, self.minted)

    def credential_mint(self) -> CredentialMint:
        record = batched_entries(self.hot, self.metrics)
        return CredentialMint(self.hot, self.minter, self.credentials, self.places, self.clock, record)

    def bundle_urls(self) -> BundleUrls:
        return BundleUrls(self.pool, self.objects, self.clock, self.bundles.url_seconds, self.task_url)

    def bundle_limits(self) -> BundleLimits:
        return BundleLimits(archive_bytes=self.bundles.max_bytes, unpacked_bytes=self.bundles.max_unpacked_bytes)

    def payloads(self) -> Payloads:
        return Payloads(self.runtimes, self.bundle_urls())

    def claimer(self) -> Claimer:
        made = self.payloads(), self.token_mint()
        return Claimer(self.pool, self.hot, self.jobs, *made, self.after_commit, self.names, self.seal)

    def renewer(self) -> Renewer:
        return Renewer(self.hot, self.token_mint())

    def completer(self) -> Completer:
        options = BatchOptions(self.jobs, self.replica, self.failure_alert, routes=self.wake_ups is not None)
        announcer = Announcer(self.wake_ups, self.after_commit, self.names)
        return Completer(self.hot, self.objects, options, announcer)

    def reuse_outputs(self) -> ReuseOutputs:
        options = BatchOptions(self.jobs, self.replica, self.failure_alert, routes=False)
        announcer = Announcer(self.wake_ups, self.after_commit, self.names)
        return ReuseOutputs(self.token_mint(), options, announcer)

    def router(self) -> Router:
        return Router(self.hot, self.replica, self.metrics)

    def drain(self, functions: Signal | None = None, job_runs: Mapping[str, Signal] | None = None) -> Drain:
        """`functions`: notified of tasks that run as functions; `job_runs`: of those that are job runs, by runtime."""
        run_here = partial(run_in_process, self.claimer(), self.completer())
        called = {name: functions for name, item in self.runtimes.items() if functions and item.invoker == "function"}
        called |= job_runs or {}
        dispatcher = EntryDispatcher(self.hot, self.queue, self.runtimes, self.replica, called, run_here)
        return Drain(dispatcher, self.router(), self.wake_ups)

    def hooks(self) -> Hooks:
        return Hooks(self.hot, self.after_commit, self.hook_secrets, self.clock, self.seal)

    def fire_source(self) -> FireSource:
        return FireSource(self.pool, self.after_commit, self.hooks())

    def expire_leases(self) -> ExpireLeases:
        return ExpireLeases(self.pool, self.after_commit, self.failure_alert, self.max_workers_lost)

    def call_functions(self, invoker: Invoker, most: int) -> CallFunctions:
        return self._calls(self.runtimes, invoker, most, "function")

    def start_job_runs(self, runtime: str, runner: JobRunner, most: int) -> CallFunctions:
        """Of one runtime: each has an application of its own."""
        return self._calls({runtime: self.runtimes[runtime]}, runner, most, "job_run")

    def _calls(
        self, runtimes: Mapping[str, RuntimeSettings], invoker: Invoker, most: int, kind: CallKind
    ) -> CallFunctions:
        shares = TierShares(most, self.flow.normal_share, self.flow.reserved_slots)
        verbs = self.claimer(), self.renewer(), self.completer()
        return CallFunctions(runtimes, *verbs, invoker, most, shares, kind)
