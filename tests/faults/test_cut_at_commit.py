"""The line to Postgres is cut at COMMIT, before or after the server did it: callers repeat, and it counts once."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

from tests.support.faults.history_checker import assert_kept
from tests.support.faults.postgres_proxy import When, cutting
from tests.support.faults.traffic import Traffic, flowing
from tests.support.systems.processes import System, calling
from tracelake.store.queries import queries

pytestmark = pytest.mark.anyio

STATEMENTS = {
    "deploy": ("dags", "insert_version"),
    "activate": ("dags", "set_current_version"),
    "trigger": ("sources", "store_trigger"),
    "invalidate": ("events", "store_invalidation"),
    "cancel": ("lifecycle", "cancel_task"),
    "retry": ("lifecycle", "revive_task"),
    "claim": ("claim", "claim_tasks"),
    "heartbeat": ("claim", "renew_leases"),
    "events": ("events", "store_events"),
    "publish a batch": ("events", "publish_buffer"),
    "complete": ("complete", "complete_tasks"),
    "complete with outputs": ("complete", "insert_commit"),
    "route events": ("route", "route_events"),
    "route invalidations": ("route", "route_invalidations"),
    "give slots": ("route", "wake_waiting"),
    "take entries": ("outbox", "take_entries"),
    "keep entries": ("outbox", "mark_entries_done"),
    "run here": ("in_process", "lock_job"),
    "expire leases": ("lifecycle", "expire_leases"),
    "queue retries": ("lifecycle", "retry_due"),
    "start sources": ("sources", "start_sources"),
    "retire tasks": ("dags", "cancel_retired_tasks"),
    "record keys": ("signing_keys", "insert_keys"),
    "settle keys": ("signing_keys", "plan"),
}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_line_cut_at_commit_loses_and_doubles_nothing(system: System, when: When) -> None:
    with tempfile.TemporaryDirectory(prefix="trace-cut-") as folder:  # a socket's path must be short
        async with cutting(system.state_dsn, Path(folder)) as (proxy, dsn), calling(system) as caller:
            traffic = Traffic(system, caller)
            dispatcher = system.dispatcher(state_dsn=dsn)
            await traffic.deploy()
            system.worker()
            async with flowing(traffic):
                for name, (file, statement) in STATEMENTS.items():
                    proxy.aim(queries(file)[statement], when)
                    try:
                        await asyncio.wait_for(proxy.cut.wait(), 120)
                    except TimeoutError:
                        pytest.fail(f"the COMMIT of {name} never came")
            assert dispatcher.alive(), dispatcher.said()
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)
