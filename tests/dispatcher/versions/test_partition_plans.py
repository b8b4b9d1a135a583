"""Partitions are looked up by an index however many there are, on the pools that do it in production."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from tests.support.dispatcher.job_chain import Chain, deploy_chain
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.versions.units import Unit, columns
from tracelake.store.queries import fetch_rows, queries

pytestmark = pytest.mark.anyio

MANY = 100_000
UNREFERRED = "SET LOCAL session_replication_role = replica"
"""Without foreign keys: the partitions' commits are not there."""


async def fill(dsn: str, chain: Chain) -> None:
    """Many partitions of one block each, each in a commit of its own, and an event of the last.

    On a connection of its own: those of the pools end a statement after 30 s.
    """
    connection = await asyncpg.connect(dsn)
    try:
        await insert_partitions(connection, chain)
        await connection.execute("ANALYZE partition_versions")
    finally:
        await connection.close()


async def insert_partitions(connection: asyncpg.Connection, chain: Chain) -> None:
    named = chain.org.id, chain.datasets["first"], chain.versions["first"], MANY
    async with connection.transaction():
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


LARGE = {"tasks", "processed_inputs", "partition_versions"}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


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


async def test_only_the_requested_partitions_are_read(control: Control, state_db: str) -> None:
    chain = await deploy_chain(control)
    await fill(state_db, chain)
    version = chain.versions["first"]
    routing = await rows_read(control.hot, queries("route")["route_events"], "500, 'one', '10 s', NULL, false, 20")
    await control.pool.execute("UPDATE events SET routed_at = now()")
    mending = await rows_read(
        control.pool, queries("reconcile")["route_lost_events"], "now() - interval '1 h', now() + interval '1 h'"
    )
    written = f"'{version}', ARRAY['5-5'], ARRAY[5], ARRAY[6]"
    checking = await rows_read(control.hot, queries("complete")["current_partitions"], f"{written}, now()")
    ending = await rows_read(control.hot, queries("complete")["end_partitions"], f"{written}, {MANY + 1}")
    for read in (routing, mending, checking, ending):
        assert 1 <= read <= 10, (routing, mending, checking, ending)


async def test_a_batch_of_a_pass_reads_no_more_partitions_than_it_compares(control: Control, state_db: str) -> None:
    chain = await deploy_chain(control)
    await fill(state_db, chain)
    version, batch = chain.versions["first"], 500
    sql = queries("catch_up")
    after = f"{MANY - 1000}, ''"
    oldest = await rows_read(control.pool, sql["list_partitions"], f"'{version}', {after}, {batch}, NULL, NULL")
    newest = await rows_read(control.pool, sql["list_partitions_newest"], f"'{version}', {after}, {batch}, NULL, NULL")
    blocks = f"'{version}', {after}, {batch}, {MANY - 900}, {MANY}"
    within = await rows_read(control.pool, sql["list_partitions"], blocks)
    for read in (oldest, newest, within):
        assert batch <= read <= 4 * 1000, (oldest, newest, within)


async def test_catching_up_looks_up_each_unit_by_an_index(control: Control, state_db: str) -> None:
    """Planned on large tables, whatever the batch: no plan that reads a table whole."""
    chain = await deploy_chain(control)
    await fill(state_db, chain)
    await control.pool.execute(
        "INSERT INTO processed_inputs (lineage_id, dataset_version, partition_key, commit_number, read_at, task_id)"
        " SELECT j.lineage_id, $2, block_range_key(int8range(n, n + 1)), n, now(), uuidv7()"
        " FROM jobs j, generate_series(1, $3::bigint) n WHERE j.id = $1",
        chain.jobs["second"],
        chain.versions["first"],
        MANY,
    )
    await control.pool.execute(
        "INSERT INTO tasks (org_id, job_id, dedupe_key, status, completed_at, cancel_reason)"
        " SELECT $1, $2, 'partition:' || n, 'Canceled', now(), 'a test' FROM generate_series(1, $3::bigint) n",
        chain.org.id,
        chain.jobs["second"],
        MANY,
    )
    await control.pool.execute("ANALYZE processed_inputs, tasks")
    units = await fetch_rows(
        control.pool, queries("catch_up")["list_partitions"], Unit, chain.versions["first"], 0, "", 1000, None, None
    )
    read = chain.jobs["second"], chain.datasets["first"], chain.versions["first"], *columns(units)
    for name, more in (("create_lacking", (None, False, False, False)), ("list_unfinished", ())):
        plan = await control.pool.fetchval(f"EXPLAIN (FORMAT JSON) {queries('catch_up')[name]}", *read, *more)
        scans = [node for node in nodes(json.loads(plan)[0]["Plan"]) if node.get("Relation Name") in LARGE]
        assert scans
        for node in scans:
            assert node["Node Type"] in {"Index Scan", "Index Only Scan", "ModifyTable"}, node
