"""The questions that are asked all the time are answered by an index that holds live rows only.

The tables are empty here and sequential scans forbidden: what is shown is that an index fits the question, with any
parameters (a generic plan), not that the planner finds it cheaper.

A row that is named by id is asked for its status with IS TRUE, which keeps partial indexes out of the choice: a plan
made while there are few live rows would read all of them, and would still do so when there are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from trace_platform.lite.postgres import RunningServer
from trace_platform.store.migrate import Database

HOT = {"tasks", "task_attempts", "events", "outbox"}
# What must be found among finished rows too: a row by its id, and a twin by its key.
OVER_HISTORY = {
    "tasks_pkey",
    "idx_tasks_job_dedupe",
    "idx_tasks_memo",
    "task_attempts_pkey",
    "idx_task_attempts_begun",
    "events_pkey",
    "events_once",
    "idx_events_made",
    "outbox_pkey",
}

QUESTIONS = {
    "claim_a_task": (
        "tasks_pkey",
        "UPDATE tasks SET status = 'Running' WHERE id = $1::uuid AND (status = 'Queued') IS TRUE",
    ),
    "end_an_attempt": (
        "tasks_pkey",
        "UPDATE tasks SET status = 'Completed' WHERE id = ANY($1::uuid[]) AND (status = 'Running') IS TRUE",
    ),
    "keep_a_promise": (
        "outbox_pkey",
        "UPDATE outbox SET status = 'Done' WHERE id = ANY($1::bigint[]) AND (status = 'Processing') IS TRUE",
    ),
    "find_the_task_of_a_unit_of_work": (
        "idx_tasks_job_dedupe",
        "SELECT id FROM tasks WHERE job_id = $1::uuid AND dedupe_key = $2::text",
    ),
    "attempts_after_the_janitors_mark": (
        "idx_task_attempts_begun",
        "SELECT task_id FROM task_attempts WHERE started_at > $1 ORDER BY started_at FETCH FIRST 500 ROWS WITH TIES",
    ),
    "depth_of_a_queue": (
        "idx_tasks_queued",
        "SELECT count(*) FROM tasks WHERE status = 'Queued' AND job_id = $1::uuid",
    ),
    "age_of_a_queue": (
        "idx_tasks_queued",
        "SELECT min(queued_at) FROM tasks WHERE status = 'Queued' AND job_id = $1::uuid",
    ),
    "depth_and_age_of_every_queue": (
        "idx_tasks_queued",
        "SELECT job_id, count(*), min(queued_at) FROM tasks WHERE status = 'Queued' GROUP BY job_id",
    ),
    "slots_taken_of_a_job": (
        "idx_tasks_in_flight",
        (
            "SELECT count(*) FROM tasks WHERE status IN ('Queued', 'Running') AND woken_at IS NOT NULL"
            " AND job_id = $1::uuid"
        ),
    ),
    "next_for_a_slot": (
        "idx_tasks_slot_wait",
        (
            "SELECT id FROM tasks WHERE status = 'Queued' AND woken_at IS NULL AND job_id = $1::uuid"
            " ORDER BY priority, queued_at LIMIT $2::int"
        ),
    ),
    "leases_that_ran_out": (
        "idx_tasks_lease_expiry",
        (
            "SELECT id FROM tasks WHERE status = 'Running' AND lease_expires_at < $1::timestamptz"
            " ORDER BY lease_expires_at LIMIT $2::int"
        ),
    ),
    "retries_that_are_due": (
        "idx_tasks_next_retry",
        (
            "SELECT id FROM tasks WHERE status = 'Failed' AND next_retry_at <= $1::timestamptz"
            " ORDER BY next_retry_at LIMIT $2::int"
        ),
    ),
    "what_failed_for_good": (
        "idx_tasks_failed",
        (
            "SELECT id FROM tasks WHERE org_id = $1::uuid AND status = 'Failed' AND next_retry_at IS NULL"
            " ORDER BY completed_at DESC LIMIT 50"
        ),
    ),
    "a_task_to_take_the_outputs_of": (
        "idx_tasks_memo",
        "SELECT id FROM tasks WHERE status = 'Completed' AND org_id = $1::uuid AND memo_key = $2::bytea",
    ),
    "history_of_a_task": (
        "task_attempts_pkey",
        "SELECT * FROM task_attempts WHERE task_id = $1::uuid ORDER BY attempt",
    ),
    "promises_that_are_due": (
        "idx_outbox_pending",
        (
            "SELECT id FROM outbox WHERE status = 'Pending' AND available_at <= $1::timestamptz"
            " ORDER BY available_at, id LIMIT $2::int FOR UPDATE SKIP LOCKED"
        ),
    ),
    "promises_of_a_dead_taker": (
        "idx_outbox_taken",
        "SELECT id FROM outbox WHERE status = 'Processing' AND taken_until < $1::timestamptz LIMIT $2::int",
    ),
    "promises_given_up": (
        "idx_outbox_failed",
        "SELECT id FROM outbox WHERE status = 'Failed' AND org_id = $1::uuid ORDER BY id DESC LIMIT 50",
    ),
    "an_event_stored_before": (
        "events_once",
        (
            "SELECT id FROM events WHERE producer_run_id = $1::uuid AND dataset_uuid = $2::uuid"
            " AND dataset_version = $3::uuid AND scope = $4::text"
        ),
    ),
    "readers_of_a_dataset": (
        "idx_job_inputs_live",
        "SELECT job_id FROM job_inputs WHERE live AND dataset_uuid = $1::uuid",
    ),
    "events_held_for_a_job_in_order": (
        "held_events_pkey",
        "SELECT event_id FROM held_events WHERE job_id = $1::uuid ORDER BY event_id LIMIT $2::int",
    ),
    "partitions_in_force": (
        "idx_partition_versions_in_force",
        "SELECT * FROM partition_versions WHERE dataset_version = $1::uuid AND valid_to IS NULL",
    ),
    "one_partition_in_force": (
        "idx_partition_versions_in_force",
        (
            "SELECT * FROM partition_versions WHERE dataset_version = $1::uuid AND partition_key = $2::text"
            " AND valid_to IS NULL"
        ),
    ),
    "a_range_as_of_a_commit": (
        "partition_versions_ranges_do_not_overlap",
        (
            "SELECT * FROM partition_versions WHERE uuid_span(dataset_version, dataset_version, '[]')"
            " && uuid_span($1::uuid, $1::uuid, '[]') AND block_range && $2::int8range AND commits @> $3::bigint"
            " AND block_range IS NOT NULL"
        ),
    ),
    "batches_on_their_way": (
        "idx_buffer_publishes_open",
        "SELECT id FROM buffer_publishes WHERE status = 'Accepted' ORDER BY id LIMIT 50",
    ),
    "invalidations_that_a_job_owes": (
        "idx_data_invalidation_jobs_open",
        "SELECT invalidation_id FROM data_invalidation_jobs WHERE job_id = $1::uuid AND processed_at IS NULL",
    ),
    "pauses_of_a_job_in_force": (
        "pauses_one_per_cause",
        "SELECT reason, cause_job_id FROM pauses WHERE job_id = $1::uuid AND until IS NULL",
    ),
    "a_worker_by_its_token": (
        "worker_tokens_hash_once",
        "SELECT id FROM worker_tokens WHERE token_hash = $1::bytea",
    ),
    "datasets_by_name": (
        "datasets_name_once",
        "SELECT id FROM datasets WHERE org_id = $1::uuid AND name = $2::text",
    ),
}


@pytest.fixture(scope="module")
def state(postgres: RunningServer, template: Callable[[Database], str]) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.create_database("indexes", template("state")), autocommit=True) as connection:
        yield connection
    postgres.drop_database("indexes")


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_question_is_answered_by_its_index(state: psycopg.Connection[Any], question: str) -> None:
    index, statement = QUESTIONS[question]
    state.execute("SET enable_seqscan = off")
    # One way to read an index is as good as another here; sorting is not, where the index has the order.
    state.execute("SET enable_bitmapscan = off")
    plan = state.execute(f"EXPLAIN (GENERIC_PLAN, COSTS OFF, FORMAT JSON) {statement}".encode()).fetchone()
    assert plan is not None
    nodes = list(walk(plan[0][0]["Plan"]))
    assert {node["Index Name"] for node in nodes if "Index Name" in node} == {index}
    assert not any("Seq Scan" in node["Node Type"] for node in nodes)
    assert "ORDER BY" not in statement or not any(node["Node Type"] == "Sort" for node in nodes)


def test_indexes_of_hot_tables_hold_live_rows_only(state: psycopg.Connection[Any]) -> None:
    found = state.execute(
        "SELECT indexrelid::regclass::text, pg_get_expr(indpred, indrelid) FROM pg_index"
        " WHERE indrelid::regclass::text = ANY(%s)",
        (sorted(HOT),),
    ).fetchall()
    kept = {name for name, predicate in found if predicate is None or "status" not in predicate}
    assert kept <= OVER_HISTORY
    assert {name for name, _ in found} >= OVER_HISTORY


def test_hot_tables_are_vacuumed_by_count_not_by_share_of_their_history(state: psycopg.Connection[Any]) -> None:
    found = state.execute("SELECT relname, reloptions FROM pg_class WHERE relname = ANY(%s)", (sorted(HOT),))
    for name, options in found.fetchall():
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
        ("dataset_cursors", "cursor_value, updated_at"),
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
