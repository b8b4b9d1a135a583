"""The checker sees each kind of wrong: a good history is spoiled in one way at a time, and must be missed."""

from __future__ import annotations

import asyncpg
import pytest

from tests.support.faults.history_checker import GUARANTEES, assert_kept, broken
from tests.support.faults.traffic import Traffic, by_hand
from tests.support.systems.caller import calling
from tests.support.systems.processes import System

pytestmark = pytest.mark.anyio

SPOILED = {
    "every event gave exactly one task per dependent job": "DELETE FROM tasks WHERE event_id IS NOT NULL",
    "every invalidation gave exactly one task per dependent job": (
        "DELETE FROM tasks WHERE invalidation_id IS NOT NULL"
    ),
    "every reader did its share of every invalidation": "UPDATE data_invalidation_jobs SET processed_at = NULL",
    "events and invalidations were routed": "UPDATE events SET routed_at = NULL",
    "a task completes once": (
        "UPDATE task_attempts SET outcome = 'Completed', error_message = NULL WHERE outcome <> 'Completed'"
    ),
    "no stale attempt committed": "UPDATE commits SET attempt = attempt + 1",
    "an attempt begins only when the one before it has ended": (
        "UPDATE task_attempts SET ended_at = now() + interval '1 hour' WHERE attempt = 1"
    ),
    "an attempt commits a dataset once": (
        "INSERT INTO commits (dataset_uuid, number, org_id, dataset_version, task_id, attempt)"
        " SELECT dataset_uuid, number + 1000, org_id, dataset_version, task_id, attempt FROM commits"
    ),
    "the commits of a dataset are numbered without a gap": "UPDATE dataset_heads SET last_commit = last_commit + 1",
    "a completed noop published its input event, once": "DELETE FROM events WHERE producer_task_id IS NOT NULL",
    "every outbox entry was published": "UPDATE outbox SET status = 'Failed', last_error = 'given up'",
    "every accepted mutation has its entry": "DELETE FROM outbox WHERE kind = 'publish_buffer'",
    "nothing is left to do": "UPDATE tasks SET status = 'Queued', completed_at = NULL, cancel_reason = NULL"
    " WHERE status = 'Canceled' AND started_at IS NULL",
    "current ranges do not overlap": "UPDATE partition_versions SET block_range = int8range(0, 1000)",
    "ranges tile the requested range, without hole or overlap": "DELETE FROM events WHERE partition_key = '0-9'",
}


async def test_each_guarantee_is_reported_when_it_is_broken(system: System) -> None:
    async with calling(system) as caller:
        traffic = Traffic(system, caller)
        system.dispatcher()
        await traffic.deploy()
        system.worker()
        async with by_hand(caller, system):
            for _ in range(6):
                await traffic.round()
            await traffic.settle()
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)
    assert SPOILED.keys() == GUARANTEES.keys()
    for child in system.started:  # whose locks would be in the way
        await child.kill()
    async with system.pool.acquire() as connection:
        await loosen(connection)
        for entry, spoil in SPOILED.items():
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(spoil)
            assert entry in await broken(connection), entry
            await transaction.rollback()


async def loosen(connection: asyncpg.pool.PoolConnectionProxy) -> None:
    """The schema would not let most of this happen: it is taken away, so that the checker stands alone."""
    await connection.execute("SET session_replication_role = replica")
    rows = await connection.fetch(
        "SELECT conrelid::regclass::text AS owner, conname FROM pg_constraint"
        " WHERE contype IN ('c', 'x', 'u') AND connamespace = 'public'::regnamespace AND conrelid <> 0"
    )
    for row in rows:
        await connection.execute(f'ALTER TABLE {row["owner"]} DROP CONSTRAINT IF EXISTS "{row["conname"]}" CASCADE')
