"""The statements that run all the time find their rows by an index that holds live rows only.

The tables are empty here and sequential scans forbidden: what is shown is that an index fits the statement, with any
parameters (a generic plan), not that the planner finds it cheaper.

The status of a row named by id is tested with IS TRUE, which keeps partial indexes out of the choice: a plan
made while there are few live rows would read all of them, and would still do so when there are many.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.support.indexes import OVER_HISTORY
from tests.support.postgres import RunningServer
from tracelake.store.migrate import Database
from tracelake.store.queries import queries

HOT = {"tasks", "task_attempts", "events", "outbox"}

STATEMENTS = {
    "buffered.republish_lost": {"idx_buffer_publishes_open"},
    "audit.list_after": {"audit_entries_place_once"},
    "audit.list_before": {"audit_entries_place_once"},
    "audit.list_unlinked": {"idx_audit_entries_unlinked"},
    "behind.clear_behind": {"idx_tasks_queued", "idx_tasks_in_flight", "idx_tasks_next_retry"},
    "behind.list_behind": {"idx_tasks_slot_wait", "idx_tasks_in_flight", "idx_tasks_next_retry"},
    "claim.claim_tasks": {"tasks_pkey"},
    "claim.statuses": {"tasks_pkey"},
    "claim.renew_leases": {"tasks_pkey", "pauses_one_per_cause"},
    "complete.complete_tasks": {
        "tasks_pkey",
        "task_attempts_pkey",
        "idx_job_inputs_live",
        "idx_data_invalidation_jobs_open",
    },
    "complete.lock_fenced": {"tasks_pkey"},
    "dags.list_jobs": {"idx_tasks_queued", "idx_tasks_in_flight"},
    "gauges.queued": {"idx_tasks_queued"},
    "orphan_files.list_attempts": {"idx_task_attempts_begun"},
    "lifecycle.expire_leases": {"idx_tasks_lease_expiry", "tasks_pkey"},
    "lifecycle.retry_due": {"idx_tasks_next_retry", "tasks_pkey"},
    "outbox.mark_entries_done": {"outbox_pkey"},
    "outbox.look": {"idx_outbox_pending", "idx_outbox_taken", "idx_tasks_slot_wait"},
    "outbox.take_entries": {"idx_outbox_pending", "idx_outbox_taken", "outbox_pkey"},
    "relations.prune_audit": {"idx_query_audit_age"},
    "route.route_events": {"events_pkey", "idx_job_inputs_live", "idx_outbox_pending", "idx_outbox_turns"},
    "flow.list_in_flight": {"idx_tasks_in_flight", "idx_tasks_slot_wait"},
    "flow.worker_load": {"idx_tasks_next_retry"},
    "route.lock_slots": {"idx_tasks_slot_wait"},
    "route.wake_waiting": {"idx_tasks_slot_wait", "idx_tasks_in_flight"},
    "sources.events_of_request": {"events_once"},
    "sources.start_sources": {"idx_tasks_job_dedupe"},
    "user_outbox.retry_given_up": {"idx_outbox_failed"},
    "user_tasks.show_task": {"tasks_pkey", "task_attempts_pkey"},
    "user_why.find_event": {"idx_events_dataset"},
    "user_why.list_input_events": {"idx_events_dataset"},
    "user_why.find_last_event": {"idx_events_dataset"},
}
"""Statements as they are run, and the indexes that must find their rows; whatever else they read is not said here."""
IN_ORDER = {
    "lifecycle.expire_leases",
    "lifecycle.retry_due",
    "outbox.take_entries",
    "relations.prune_audit",
    "user_why.find_last_event",
}
"""Those that take the first of many in an order that their index has: they sort nothing."""


@pytest.fixture(scope="module")
def state(postgres: RunningServer, template: Callable[[Database], str]) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.create_database("indexes", template("state")), autocommit=True) as connection:
        yield connection
    postgres.drop_database("indexes")


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_statement_finds_its_rows_by_these_indexes(state: psycopg.Connection[Any], statement: str) -> None:
    file, name = statement.split(".")
    assert_finds(state, queries(file)[name], STATEMENTS[statement], in_order=statement in IN_ORDER)


@pytest.mark.parametrize("file", ["catch_up", "comparisons", "relations", "user_datasets"])
def test_the_datasets_of_a_user_are_not_listed_in_full_before_a_statement_finds_its_own(
    state: psycopg.Connection[Any], file: str
) -> None:
    """Postgres plans the body of `datasets_seen` as a part of the statement: no call of the function is left."""
    sees = {name: sql for name, sql in queries(file).items() if "datasets_seen(" in sql}
    assert sees
    for name, sql in sees.items():
        plan = state.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {sql}".encode()).fetchone()
        assert plan is not None
        called = [node for node in walk(plan[0][0]["Plan"]) if node.get("Function Name") == "datasets_seen"]
        assert called == [], name


READS = {"catch_up.take", "catch_up.mark_read_otherwise", "catch_up.list_reads", "releases.list_release_reads"}


@pytest.mark.parametrize("statement", sorted(READS))
def test_what_jobs_read_is_not_listed_for_all_versions_before_a_statement_finds_its_own(
    state: psycopg.Connection[Any], statement: str
) -> None:
    """Postgres plans `job_reads` as a part of the statement: else each pass over an input would cost more with every
    version that was ever deployed, and each activation too.
    """
    file, name = statement.split(".")
    plan = state.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {queries(file)[name]}".encode()).fetchone()
    assert plan is not None
    nodes = list(walk(plan[0][0]["Plan"]))
    assert [node for node in nodes if node.get("Relation Name") == "job_inputs"]
    assert not [node for node in nodes if node["Node Type"] in {"Unique", "Aggregate"} and is_over_inputs(node)]


def is_over_inputs(node: dict[str, Any]) -> bool:
    """Rows of inputs are made distinct: they are what all versions read."""
    return "Group Key" not in node and any(inner.get("Relation Name") == "job_inputs" for inner in walk(node))


def test_what_is_old_in_data_postgres_is_found_by_its_age(data_db: str) -> None:
    source = "SELECT prosrc FROM pg_proc WHERE oid = 'alerts.prune_deliveries'::regproc"
    with psycopg.connect(data_db, autocommit=True) as connection:
        assert_finds(connection, queries("applied_batches")["old"], {"idx_applied_batches_age"}, in_order=True)
        row = connection.execute(source).fetchone()
        assert row is not None
        pruned = re.sub(r"\bkeep\b", "$1::interval", re.sub(r"\bmost\b", "$2::integer", row[0]))
        assert_finds(connection, pruned, {"idx_deliveries_settled"}, in_order=True)


def assert_finds(connection: psycopg.Connection[Any], sql: str, indexes: set[str], *, in_order: bool) -> None:
    connection.execute("SET enable_seqscan = off")
    # One way to read an index is as good as another here; sorting is not, where the index has the order.
    connection.execute("SET enable_bitmapscan = off")
    plan = connection.execute(f"EXPLAIN (GENERIC_PLAN, COSTS OFF, FORMAT JSON) {sql}".encode()).fetchone()
    assert plan is not None
    nodes = list(walk(plan[0][0]["Plan"]))
    assert {node["Index Name"] for node in nodes if "Index Name" in node} >= indexes
    assert not [node for node in nodes if "Seq Scan" in node["Node Type"] and node["Relation Name"] in HOT]
    assert not in_order or not any(node["Node Type"] == "Sort" for node in nodes)


def test_indexes_of_hot_tables_hold_live_rows_only(state: psycopg.Connection[Any]) -> None:
    found = state.execute(
        "SELECT indexrelid::regclass::text, pg_get_expr(indpred, indrelid) FROM pg_index"
        " WHERE indrelid::regclass::text = ANY(%s)",
        (sorted(HOT),),
    ).fetchall()
    over_all_rows = {name for name, predicate in found if predicate is None or "status" not in predicate}
    assert over_all_rows <= OVER_HISTORY
    assert {name for name, _ in found} >= OVER_HISTORY


def test_hot_tables_are_vacuumed_by_count_not_by_share_of_their_history(state: psycopg.Connection[Any]) -> None:
    found = state.execute("SELECT relname, reloptions FROM pg_class WHERE relname = ANY(%s)", (sorted(HOT),))
    tables = dict(found.fetchall())
    assert tables.keys() == HOT
    for name, options in tables.items():
        settings = dict(option.split("=") for option in options or [])
        assert "fillfactor" in settings, name
        assert settings["autovacuum_vacuum_scale_factor"] == "0", name
        assert settings["autovacuum_vacuum_insert_scale_factor"] == "0", name


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("task_attempts", "ended_at, outcome, late, error_message"),
        ("events", "routed_at"),
        ("dataset_heads", "last_commit"),
        ("processed_inputs", "commit_number, cursor_value, read_at, task_id, again"),
        ("operator_state", "state, updated_at"),
        ("sources", "state, state_since, task_id, last_heartbeat, restarts, drain_reason, last_error"),
    ],
)
def test_the_usual_update_touches_no_indexed_column(state: psycopg.Connection[Any], table: str, change: str) -> None:
    """So that it can stay within its page, without a new entry in any index."""
    found = state.execute(
        "SELECT attname FROM pg_attribute JOIN pg_index ON indrelid = attrelid AND attnum = ANY(indkey)"
        " WHERE attrelid = %s::regclass",
        (table,),
    ).fetchall()
    predicates = state.execute(
        "SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass AND indpred IS NOT NULL", (table,)
    ).fetchone()
    assert {name for (name,) in found} & set(change.split(", ")) == set()
    assert predicates == (0,)


def walk(node: dict[str, Any]) -> Any:
    yield node
    for inner in node.get("Plans", []):
        yield from walk(inner)
