"""Every named statement stands up on a migrated database, and says what it is for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from tests.support.indexes import IN_DATA, OVER_HISTORY
from tracelake.store.db import STEADY
from tracelake.store.migrate import Database
from tracelake.store.queries import FOLDER, queries

ADMINISTRATIVE = {"describe", "first_start", "restore", "roles_data", "roles_queue", "roles_state"}
"""Run through psycopg by the owner, not prepared by the Dispatcher."""
FILES = sorted(path.stem for path in FOLDER.glob("*.sql") if path.stem not in ADMINISTRATIVE)


@pytest.mark.parametrize("file", FILES)
def test_every_statement_can_be_prepared(file: str, clone: Callable[[Database], str]) -> None:
    dsn = clone("data" if file in IN_DATA else "state")

    async def prepare_all() -> dict[str, str]:
        connection = await asyncpg.connect(dsn)
        wrong = {}
        try:
            for name, sql in queries(file).items():
                try:
                    await connection.prepare(sql)
                except asyncpg.PostgresError as refusal:
                    wrong[name] = str(refusal)
        finally:
            await connection.close()
        return wrong

    assert asyncio.run(prepare_all()) == {}


@pytest.mark.parametrize("file", FILES)
def test_every_statement_begins_with_a_sentence(file: str) -> None:
    for name, sql in queries(file).items():
        assert re.match(r"-- [A-Z].*[.:,]", sql), f"{file}.{name}"


HOT = {
    "claim": {"claim_tasks", "renew_leases", "statuses"},
    "complete": {"complete_tasks", "lock_fenced"},
    "route": {"route_events", "route_invalidations", "lock_slots", "wake_waiting"},
    "outbox": {"look", "take_entries", "mark_entries_done", "postpone_entries", "delete_done_entries"},
}
"""Statements with a cached plan (`store.db.STEADY`)."""
LARGE = {"tasks", "task_attempts", "task_inputs", "processed_inputs", "events", "outbox"}


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, names in HOT.items() for name in sorted(names)])
def test_a_hot_statement_planned_on_empty_tables_never_reads_a_large_one_whole(
    file: str, name: str, state_db: str
) -> None:
    """The plan stays cached while the tables grow: it must be the right one from the first day."""
    with psycopg.connect(state_db, autocommit=True) as connection:
        for setting, value in STEADY.items():
            connection.execute("SELECT set_config(%s, %s, false)", (setting, value))
        row = connection.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {queries(file)[name]}".encode()).fetchone()
    assert row is not None
    for node in nodes(row[0][0]["Plan"]):
        if node.get("Relation Name") in LARGE and node["Node Type"] != "ModifyTable":
            assert node["Node Type"] in {"Index Scan", "Index Only Scan"}, node
            partial = node["Index Name"] not in OVER_HISTORY
            assert partial or "Index Cond" in node, node
        if node.get("Relation Name") == "partition_versions":
            assert "partition_key" in node["Index Cond"] or "block_range" in node["Index Cond"], node
        assert "Hash Join" not in node["Node Type"], node
        assert "Merge Join" not in node["Node Type"], node


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)
