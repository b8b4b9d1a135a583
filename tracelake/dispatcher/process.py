"""`trace dispatcher`: two listeners and the background loops over the state database."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from tracelake.capability.verifier import Verifier
from tracelake.dispatcher.audit.link import LinkAudit, PruneAuditEntries
from tracelake.dispatcher.audit.refusals import StoreRefusals
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.flow.apply_pressure import ApplyPressure
from tracelake.dispatcher.flow.set_limits import set_limits
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.dispatcher.http.task_routes import task_api
from tracelake.dispatcher.identity.log_in import warn_of_unusable_rules
from tracelake.dispatcher.limits.measure_storage import MeasureStorage
from tracelake.dispatcher.maintenance.cancel_retired import CancelRetired
from tracelake.dispatcher.maintenance.delete_applied_batches import DeleteAppliedBatches
from tracelake.dispatcher.maintenance.delete_old_exports import DeleteOldExports
from tracelake.dispatcher.maintenance.delete_orphan_files import DeleteOrphanFiles
from tracelake.dispatcher.maintenance.delete_replaced_files import DeleteReplacedFiles
from tracelake.dispatcher.maintenance.delete_unused_bundles import DeleteUnusedBundles
from tracelake.dispatcher.maintenance.listen import ListenForReplicas
from tracelake.dispatcher.maintenance.loop import Loop, Periodic, Work, run_loop, stopped
from tracelake.dispatcher.maintenance.prune import PruneAudit, PruneLogs, PruneOutbox, PruneSources
from tracelake.dispatcher.maintenance.publish_metrics import PublishMetrics
from tracelake.dispatcher.maintenance.reconcile import Reconciler
from tracelake.dispatcher.maintenance.remove_left_generations import RemoveLeftGenerations
from tracelake.dispatcher.maintenance.republish_batches import RepublishBatches
from tracelake.dispatcher.maintenance.retain import DeleteOldEvents, DeleteOldRows, DeleteOldTasks
from tracelake.dispatcher.maintenance.rotate_keys import rotate_forever
from tracelake.dispatcher.maintenance.watch_pools import watch_pools
from tracelake.dispatcher.outbox.dispatch import EntryDispatcher
from tracelake.dispatcher.releases.run_releases import RunReleases
from tracelake.dispatcher.replicas import take_over
from tracelake.dispatcher.runtimes.call_functions import CallFunctions, JobRunner
from tracelake.dispatcher.runtimes.known import INVOKERS
from tracelake.dispatcher.signal import AfterCommit, Signal
from tracelake.dispatcher.sources.accept_hooks import live_secrets
from tracelake.dispatcher.sources.keep_running import KeepSourcesRunning
from tracelake.dispatcher.sources.stop_all import release_sources
from tracelake.dispatcher.sources.warn_missing_secrets import warn_at_start
from tracelake.dispatcher.versions.catch_up import CatchUp
from tracelake.dispatcher.versions.run_backfills import RunBackfills
from tracelake.domain.access.seal import Seal, read_keys
from tracelake.ports import CredentialMinter, FigureStore, Invoker, ObjectStore, Queue, Signer
from tracelake.runtime.listeners import Listener, open_listeners
from tracelake.runtime.process import Process
from tracelake.settings import Settings
from tracelake.store.clock import DatabaseClock
from tracelake.store.db import open_pool, required
from tracelake.store.jobs import JobCache
from tracelake.store.migrate import check
from tracelake.store.signing_keys import current_epoch, published


async def main(
    process: Process,
    queue: Queue,
    signer: Signer,
    objects: ObjectStore,
    minter: CredentialMinter | None = None,
    *,
    invoker: Invoker | None = None,
    figures: FigureStore | None = None,
    job_runners: Mapping[str, JobRunner] | None = None,
) -> None:
    """`job_runners`: by runtime."""
    settings = process.settings
    state = settings.state
    dsn, acquire_seconds = required(state.dsn, "state.dsn"), state.acquire_seconds
    await asyncio.to_thread(check, dsn, "state")
    async with (
        # One more: the connection that listens for the other replicas.
        open_pool(dsn, name="dispatcher", max_size=state.pool_max + 1, acquire_seconds=acquire_seconds) as pool,
        open_pool(
            dsn, name="dispatcher hot path", max_size=state.pool_max, steady=True, acquire_seconds=acquire_seconds
        ) as hot,
        _beside(watch_pools(process, dsn, (pool, hot), state.stuck_seconds)),
    ):
        replica = f"{socket.gethostname()}:{os.getpid()}"
        clock = DatabaseClock()
        verifier = Verifier(lambda: published(pool), settings.tokens, clock=clock)
        control = Control(
            pool,
            queue,
            signer,
            settings.tokens,
            JobCache(pool),
            objects,
            replica,
            settings.runtimes,
            minted=verifier.remember,
            after_commit=AfterCommit(metrics=process.metrics),
            clock=clock,
            steady=hot,
            places=settings.objects,
            minter=minter,
            credentials=settings.credentials,
            invokers=invokers_here(invoker, job_runners),
            bundles=settings.bundles,
            failure_alert=settings.dispatcher.failure_alert,
            flow=settings.flow,
            max_workers_lost=settings.dispatcher.max_workers_lost,
            task_url=settings.endpoints.dispatcher_task or "",
            hook_secrets=live_secrets(settings.hook_secrets),
            login_rules=settings.login_rules,
            seal=_seal(settings),
            epoch=await current_epoch(pool),
            home=settings.home,
        )
        await warn_of_unusable_rules(pool, settings.login_rules)
        await warn_at_start(pool, control.seal, control.hook_secrets)
        await set_limits(pool, settings.runtimes, settings.operators, settings.limits)
        await release_sources(pool, control.after_commit.sources)
        await take_over(pool, replica)
        async with dispatching(control, verifier, settings, invoker, figures, job_runners=job_runners):
            process.ready("state schema checked; both listeners open")
            await process.stop.wait()


def invokers_here(invoker: Invoker | None, job_runners: Mapping[str, JobRunner] | None) -> frozenset[str]:
    missing = {name for name, there in (("function", invoker), ("job_run", job_runners)) if not there}
    return INVOKERS - missing


def _seal(settings: Settings) -> Seal:
    keys = settings.dispatcher.secret_keys
    return Seal(read_keys(keys.get_secret_value()) if keys else {})


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs the coroutine while the block runs."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await stopped(task)


@asynccontextmanager
async def dispatching(
    control: Control,
    verifier: Verifier,
    settings: Settings,
    invoker: Invoker | None = None,
    figures: FigureStore | None = None,
    *,
    job_runners: Mapping[str, JobRunner] | None = None,
) -> AsyncIterator[dict[str, str]]:
    """Runs listeners and loops while the block runs; gives the addresses of the listeners."""
    async with AsyncExitStack() as stack:
        rotation = await rotate_forever(control.pool, control.signer, control.tokens, control.clock)
        stack.push_async_callback(stopped, rotation)
        functions = control.call_functions(invoker, settings.dispatcher.functions) if invoker else None
        if functions is not None:
            await functions.put_back_orphans()
            stack.push_async_callback(functions.stop)
        job_runs = {
            name: control.start_job_runs(name, runner, settings.emr.max_runs)
            for name, runner in (job_runners or {}).items()
        }
        for runs in job_runs.values():
            stack.push_async_callback(runs.stop)
        for loop in loops(control, settings, functions, figures, job_runs):
            stack.push_async_callback(stopped, asyncio.create_task(run_loop(loop)))
        if control.wake_ups is not None:
            publisher = EntryDispatcher(control.hot, control.queue, control.runtimes, control.replica)
            control.wake_ups.start(publisher, control.after_commit.outbox)
            stack.push_async_callback(control.wake_ups.stop)
        others = ListenForReplicas(control.pool, control.after_commit, control.replica)
        await others.start()
        stack.push_async_callback(others.stop)
        stack.push_async_callback(verifier.close)
        listeners = [
            Listener(
                "dispatcher_task", settings.dispatcher.host, settings.dispatcher.task_port, task_api(control, verifier)
            ),
            Listener(
                "dispatcher_internal",
                settings.dispatcher.host,
                settings.dispatcher.internal_port,
                internal_api(control),
            ),
        ]
        opened = open_listeners(listeners, settings.tls, metrics=control.metrics, limits=settings.http)
        addresses = await stack.enter_async_context(opened)
        stack.callback(control.after_commit.stops.close)
        stack.callback(control.after_commit.schedules.close)
        stack.callback(control.after_commit.comparisons.close)
        yield addresses


def loops(
    control: Control,
    settings: Settings,
    functions: CallFunctions | None = None,
    figures: FigureStore | None = None,
    job_runs: Mapping[str, CallFunctions] | None = None,
) -> list[Loop]:
    beat, pool, objects, kept = settings.dispatcher.beat_seconds, control.pool, control.objects, settings.dispatcher
    after, old = control.after_commit, settings.retention
    scratch, lost = control.places.scratch_bucket, timedelta(seconds=settings.loops.lost_wake_up_seconds)
    signalled: dict[str, tuple[Work, Signal]] = {
        "drain_outbox": (
            control.drain(
                functions.signal if functions else None, {name: runs.signal for name, runs in (job_runs or {}).items()}
            ),
            after.outbox,
        ),
        "expire_leases": (control.expire_leases(), after.leases),
        "keep_sources_running": (KeepSourcesRunning(pool, after), after.sources),
        "catch_up": (CatchUp(pool, after, settings.loops, control.reuse_outputs()), after.catch_up),
        "run_backfills": (RunBackfills(pool, after, settings.loops), after.backfills),
        "run_releases": (RunReleases(pool, after, control.runtime_specs), after.releases),
    }
    if functions is not None:
        signalled["call_functions"] = functions, functions.signal
    for name, runs in (job_runs or {}).items():
        signalled[f"start_job_runs.{name}"] = runs, runs.signal
    periodic: dict[str, Periodic] = {
        "cancel_retired": CancelRetired(pool, after),
        "delete_orphan_files": DeleteOrphanFiles(pool, objects, scratch),
        "delete_replaced_files": DeleteReplacedFiles(pool, objects, timedelta(days=kept.replaced_kept_days)),
        "delete_applied_batches": DeleteAppliedBatches(
            pool, objects, timedelta(seconds=settings.sink.batches_kept_seconds)
        ),
        "delete_unused_bundles": DeleteUnusedBundles(pool, objects, timedelta(days=settings.bundles.kept_days)),
        "republish_batches": RepublishBatches(pool, control.queue, after.outbox, lost),
        "prune_outbox": PruneOutbox(control.hot, timedelta(days=kept.outbox_kept_days)),
        "prune_logs": PruneLogs(control.hot, timedelta(days=kept.logs_kept_days)),
        "prune_audit": PruneAudit(pool, timedelta(days=kept.query_audit_kept_days)),
        "link_audit": LinkAudit(pool),
        "store_refusals": StoreRefusals(pool, control.refusals),
        "prune_audit_entries": PruneAuditEntries(pool, timedelta(days=old.audit_days)),
        "prune_sources": PruneSources(
            pool, timedelta(days=kept.slots_kept_days), timedelta(days=kept.deliveries_kept_days)
        ),
        "delete_old_tasks": DeleteOldTasks(pool, timedelta(days=old.tasks_days)),
        "delete_old_events": DeleteOldEvents(pool, timedelta(days=old.events_days)),
        "delete_old_invalidations": DeleteOldRows(
            pool, "delete_old_invalidations", timedelta(days=old.invalidations_days)
        ),
        "delete_old_publishes": DeleteOldRows(
            pool,
            "delete_old_publishes",
            # The sink asks whether a batch is committed before it deletes its own record of it.
            timedelta(days=old.publishes_days and max(old.publishes_days, settings.sink.applied_kept_days + 1)),
        ),
        "delete_old_pauses": DeleteOldRows(pool, "delete_old_pauses", timedelta(days=old.pauses_days)),
        "delete_old_exports": DeleteOldExports(
            pool, objects, settings.query.export_prefix, timedelta(days=old.exports_days)
        ),
        "remove_left_generations": RemoveLeftGenerations(pool, objects, timedelta(days=old.left_generations_days)),
        "measure_storage": MeasureStorage(pool, after.outbox),
        "reconcile": Reconciler(pool, control.queue, control.runtimes, after.outbox, settings.loops),
    }
    waits: dict[str, tuple[Work, Signal, float]] = {name: (*pair, beat) for name, pair in signalled.items()}
    waits |= {name: (work, Signal(), work.every_seconds or beat) for name, work in periodic.items()}
    waits["apply_pressure"] = ApplyPressure(pool, after, settings.flow), after.flow, settings.flow.pressure_seconds
    if figures is not None:
        publish = PublishMetrics(control.gauges, control.metrics, figures, settings.metrics.cloudwatch_series)
        waits["publish_metrics"] = publish, Signal(), settings.metrics.cloudwatch_seconds
    return [
        Loop(name, work.once, work.next_due, signal, wait, control.metrics)
        for name, (work, signal, wait) in waits.items()
    ]
