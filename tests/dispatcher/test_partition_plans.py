"""Partitions are looked up by an index however many there are, on the pools that do it in production."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import Chain, deploy_chain
from tracelake.dispatcher.control import Control
from tracelake.store.queries import queries

pytestmark = pytest.mark.anyio

MANY = 100_000
UNREFERRED = "SET LOCAL session_replication_role = replica"
"""Without foreign keys: the partitions' commits are not there."""


@pytest.fixture
async def control(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Control]:
    async with control_for(state_db, queue_db, tmp_path) as made:
        yield made


async def fill(control: Control, chain: Chain) -> None:
    """Many partitions of one block each, each in a commit of its own, and an event of the last."""
    named = chain.org.id, chain.datasets["first"], chain.versions["first"], MANY
    async with control.pool.acquire() as connection, connection.transaction():
        await connection.execute(UNREFERRED)
        await connection.execute(
            "INSERT INTO partition_versions"
            " (dataset_version, partition_key, valid_from, org_id, dataset_uuid, block_range, location)"
            " SELECT $3, block_range_key(int8range(n, n + 1)), n, $1, $2, int8range(n, n + 1), ''"
            " FROM generate_series(1, $4::bigint) n",
            *named,
        )
        await connection.execute(
            "WITH accepted AS ("
            " INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope,"
            " partition_key, block_range, commit_number)"
            " SELECT $1, 'manual', 'partition', gen_random_uuid(), $2, $3, 'range', block_range_key(r), r, $4::bigint"
            " FROM int8range($4::bigint, $4::bigint + 1) r RETURNING id)"
            " INSERT INTO outbox (org_id, kind, payload)"
            " SELECT $1, 'route_event', jsonb_build_object('event_id', id) FROM accepted",
            *named,
        )
    await control.pool.execute("ANALYZE partition_versions")


READ = (
    "SELECT sum(pg_stat_get_xact_tuples_returned(oid))::int FROM pg_class WHERE oid = 'partition_versions'::regclass"
    " OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'partition_versions'::regclass)"
)
"""Rows and index entries that the transaction has read, also within functions."""


async def rows_read(pool: asyncpg.Pool, statement: str, values: str) -> int:
    """How many partitions the statement reads, by the plan that this pool makes."""
    async with pool.acquire() as connection:
        with suppress(asyncpg.InvalidSQLStatementNameError):
            await connection.execute("DEALLOCATE measured")
        await connection.execute(f"PREPARE measured AS {statement}")
        async with connection.transaction():
            await connection.execute(UNREFERRED)
            await connection.execute(f"EXECUTE measured ({values})")
            return int(await connection.fetchval(READ))


async def test_only_the_requested_partitions_are_read(control: Control) -> None:
    chain = await deploy_chain(control)
    await fill(control, chain)
    version = chain.versions["first"]
    routing = await rows_read(control.hot, queries("route")["route_events"], "500, 'one', '10 s', NULL")
    await control.pool.execute("UPDATE events SET routed_at = now()")
    mending = await rows_read(
        control.pool, queries("reconcile")["route_lost_events"], "now() - interval '1 h', now() + interval '1 h'"
    )
    written = f"'{version}', ARRAY['5-5'], ARRAY[5], ARRAY[6]"
    checking = await rows_read(control.hot, queries("complete")["current_partitions"], f"{written}, now()")
    ending = await rows_read(control.hot, queries("complete")["end_partitions"], f"{written}, {MANY + 1}")
    for read in (routing, mending, checking, ending):
        assert 1 <= read <= 10, (routing, mending, checking, ending)
