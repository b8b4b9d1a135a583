"""`trace dispatcher`: the state database behind two doors, and the loops that act without being asked."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from trace_platform.capability.verifier import Verifier
from trace_platform.dispatcher.bell import Bell
from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.drain_sources import release_sources
from trace_platform.dispatcher.http.internal_routes import internal_door
from trace_platform.dispatcher.http.task_routes import task_door
from trace_platform.dispatcher.loops.call_functions import CallFunctions
from trace_platform.dispatcher.loops.clear_batches import ClearBatches
from trace_platform.dispatcher.loops.clear_bundles import ClearBundles
from trace_platform.dispatcher.loops.drain_outbox import Drain
from trace_platform.dispatcher.loops.forget import Forget
from trace_platform.dispatcher.loops.forget_logs import ForgetLogs
from trace_platform.dispatcher.loops.hear_others import HearOthers
from trace_platform.dispatcher.loops.janitor import Janitor
from trace_platform.dispatcher.loops.keep_sources import KeepSources
from trace_platform.dispatcher.loops.loop import Loop, run_loop, stopped
from trace_platform.dispatcher.loops.owe_batches import OweBatches
from trace_platform.dispatcher.loops.prune_audit import PruneAudit
from trace_platform.dispatcher.loops.reap import Reaper
from trace_platform.dispatcher.loops.reconcile import Reconciler
from trace_platform.dispatcher.loops.retain import Retain
from trace_platform.dispatcher.loops.retire import Retire
from trace_platform.dispatcher.loops.rotate_keys import keep_rotating
from trace_platform.dispatcher.loops.watch_pools import watch_pools
from trace_platform.dispatcher.replicas import take_over
from trace_platform.dispatcher.runtimes import INVOKERS
from trace_platform.dispatcher.wake import Wake
from trace_platform.doors import Door, open_doors
from trace_platform.ports import CredentialMinter, Invoker, ObjectStore, Queue, Signer
from trace_platform.process import Process
from trace_platform.settings import Settings
from trace_platform.store.clock import DatabaseClock
from trace_platform.store.db import open_pool, required
from trace_platform.store.jobs import JobCache
from trace_platform.store.migrate import check
from trace_platform.store.signing_keys import published


async def main(
    process: Process,
    queue: Queue,
    signer: Signer,
    objects: ObjectStore,
    minter: CredentialMinter | None = None,
    *,
    invoker: Invoker | None = None,
) -> None:
    settings = process.settings
    state = settings.state
    dsn, patience = required(state.dsn, "state.dsn"), state.acquire_seconds
    await asyncio.to_thread(check, dsn, "state")
    async with (
        # One more: the connection that hears the other replicas.
        open_pool(dsn, name="dispatcher", max_size=state.pool_max + 1, acquire_seconds=patience) as pool,
        open_pool(
            dsn, name="dispatcher hot path", max_size=state.pool_max, steady=True, acquire_seconds=patience
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
            metrics=process.metrics,
            clock=clock,
            steady=hot,
            places=settings.objects,
            minter=minter,
            credentials=settings.credentials,
            invokers=INVOKERS if invoker else INVOKERS - {"function"},
            bundles=settings.bundles,
            failure_alert=settings.dispatcher.failure_alert,
            max_workers_lost=settings.dispatcher.max_workers_lost,
            task_url=settings.endpoints.dispatcher_task or "",
            home=settings.home,
        )
        await release_sources(control)
        await take_over(control)
        async with dispatching(control, verifier, settings, invoker):
            process.ready("state schema checked; both doors open")
            await process.stop.wait()


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """For as long as the block lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await stopped(task)


@asynccontextmanager
async def dispatching(
    control: Control, verifier: Verifier, settings: Settings, invoker: Invoker | None = None
) -> AsyncIterator[dict[str, str]]:
    """Doors and loops, for as long as the block lasts; gives the doors' addresses."""
    async with AsyncExitStack() as stack:
        rotation = await keep_rotating(control)
        stack.push_async_callback(stopped, rotation)
        functions = CallFunctions(control, invoker, settings.dispatcher.functions) if invoker else None
        if functions is not None:
            await functions.put_back_orphans()
            stack.push_async_callback(functions.stop)
        for loop in loops(control, settings, functions):
            stack.push_async_callback(stopped, asyncio.create_task(run_loop(loop)))
        wake = Wake(control)
        wake.start()
        stack.push_async_callback(wake.stop)
        others = HearOthers(control)
        await others.start()
        stack.push_async_callback(others.stop)
        stack.push_async_callback(verifier.close)
        doors = [
            Door(
                "dispatcher_task", settings.dispatcher.host, settings.dispatcher.task_port, task_door(control, verifier)
            ),
            Door(
                "dispatcher_internal",
                settings.dispatcher.host,
                settings.dispatcher.internal_port,
                internal_door(control),
            ),
        ]
        opened = open_doors(doors, settings.tls, metrics=control.metrics, limits=settings.http)
        addresses = await stack.enter_async_context(opened)
        stack.callback(control.stops.close)
        yield addresses


def loops(control: Control, settings: Settings, functions: CallFunctions | None = None) -> list[Loop]:
    beat = settings.dispatcher.beat_seconds
    calls = functions and Loop("functions", functions.once, functions.next_due, functions.bell, beat, control.metrics)
    return [
        *([calls] if calls else []),
        *(
            Loop(name, loop.once, loop.next_due, bell, beat, control.metrics)
            for name, loop, bell in (
                ("drain", Drain(control, functions), control.owed),
                ("reap", Reaper(control), control.leases),
                ("sources", KeepSources(control), control.sources),
                ("retire", Retire(control), Bell()),
                ("janitor", Janitor(control), Bell()),
                ("retain", Retain(control, timedelta(days=settings.dispatcher.replaced_kept_days)), Bell()),
                (
                    "batches",
                    ClearBatches(control, timedelta(seconds=settings.sink.batches_kept_seconds)),
                    Bell(),
                ),
                ("bundles", ClearBundles(control, timedelta(days=settings.bundles.kept_days)), Bell()),
                (
                    "owe_batches",
                    OweBatches(control, timedelta(seconds=settings.loops.lost_wake_up_seconds)),
                    Bell(),
                ),
                ("forget", Forget(control, timedelta(days=settings.dispatcher.outbox_kept_days)), Bell()),
                ("forget_logs", ForgetLogs(control, timedelta(days=settings.dispatcher.logs_kept_days)), Bell()),
                (
                    "prune_audit",
                    PruneAudit(control, timedelta(days=settings.dispatcher.query_audit_kept_days)),
                    Bell(),
                ),
                ("reconcile", Reconciler(control, settings.loops), Bell()),
            )
        ),
    ]
