"""The state database cannot hold a row that makes no sense.

Each case is a entry. It names a legal row, which must be accepted, and the smallest change that breaks the entry,
which must be refused by the constraint that stands for it. The last test sees to it that none is without a case.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.support.cases.illegal_rows.case import Case, Change
from tests.support.cases.illegal_rows.every_case import CASES, CHANGES
from tests.support.cases.illegal_rows.rows import (
    BLOCKS,
    CANCELED,
    COMPLETED,
    FAILED,
    LEGAL,
    RANGE,
    RUNNING,
    SEED,
    T0,
    T1,
    T2,
    Row,
    uid,
)
from tests.support.postgres import RunningServer
from tracelake.store.migrate import Database

# Unique only so that others can name the row together with its org; the primary key already says so.
IMPLIED = ("_id_within_org", "_id_within_dag", "_id_within_dataset")


@pytest.fixture(scope="module")
def seeded(postgres: RunningServer, template: Callable[[Database], str]) -> Iterator[psycopg.Connection[Any]]:
    dsn = postgres.create_database("illegal_rows", template("state"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        with connection.transaction():
            for table, row in SEED:
                insert(connection, table, row)
        yield connection
    postgres.drop_database("illegal_rows")


@pytest.fixture
def state(seeded: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """What a test does to the seeded database is undone after it."""
    with seeded.transaction(force_rollback=True):
        yield seeded


@pytest.mark.parametrize("table", LEGAL)
def test_a_legal_row_is_accepted(state: psycopg.Connection[Any], table: str) -> None:
    insert(state, table, LEGAL[table])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule.replace(" ", "_"))
def test_the_row_is_refused_and_its_legal_counterpart_is_not(state: psycopg.Connection[Any], case: Case) -> None:
    if case.beside:
        insert(state, *case.beside)
    legal = {**LEGAL[case.table], **case.legal}
    with state.transaction(force_rollback=True):
        insert(state, case.table, legal)
    assert refusal(state, lambda: insert(state, case.table, {**legal, **case.broken})) == case.constraint


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.rule.replace(" ", "_"))
def test_the_change_is_refused_and_its_legal_counterpart_is_not(state: psycopg.Connection[Any], change: Change) -> None:
    insert(state, change.table, {**LEGAL[change.table], **change.row})
    update(state, change.table, change.legal)
    assert refusal(state, lambda: update(state, change.table, change.illegal)) == change.constraint


@pytest.mark.parametrize(
    "tried",
    [COMPLETED, FAILED, {**FAILED, "next_retry_at": T2}, CANCELED, RUNNING, {}],
    ids=["completed", "failed_for_good", "failed_and_waiting", "canceled", "running", "queued"],
)
def test_every_state_of_a_task_has_a_legal_row(state: psycopg.Connection[Any], tried: Row) -> None:
    insert(state, "tasks", {**LEGAL["tasks"], **tried})


def test_a_failed_task_keeps_attempt_and_token_until_the_retry_drops_them(state: psycopg.Connection[Any]) -> None:
    """S10: an expired lease keeps what identifies a late reply; the retry removes it."""
    insert(state, "tasks", {**LEGAL["tasks"], **RUNNING, "id": uid("late")})
    ended = {"status": "Failed", "completed_at": T1, "lease_expires_at": None}
    expire = {**ended, "error_message": "x", "fault": "platform", "platform_failures": 1, "next_retry_at": T2}
    late = {"status": "Completed", "error_message": None, "fault": None, "next_retry_at": None, "outputs": "[]"}
    dropped = ("lease_token", "worker_id", "started_at", "completed_at", "error_message", "fault", "next_retry_at")
    retry = {
        **dict.fromkeys(dropped),
        "status": "Queued",
        "attempt": 2,
    }
    update(state, "tasks", expire, "late")
    for next_step in (late, retry):
        with state.transaction(force_rollback=True):
            update(state, "tasks", next_step, "late")


def test_one_statement_can_replace_a_partition(state: psycopg.Connection[Any]) -> None:
    insert(state, "partition_versions", {**LEGAL["partition_versions"], **BLOCKS})
    columns = "dataset_version, partition_key, org_id, dataset_uuid, block_range, location"
    replace = f"""
        WITH ended AS (UPDATE partition_versions SET valid_to = 2 WHERE valid_to IS NULL RETURNING *)
        INSERT INTO partition_versions ({columns}, valid_from) SELECT {columns}, 2 FROM ended"""  # noqa: S608
    state.execute(replace.encode())
    as_of = "SELECT array_agg(valid_from) FROM partition_versions WHERE commits @> %s::bigint"
    assert [state.execute(as_of, (commit,)).fetchone() for commit in (1, 2, 3)] == [([1],), ([2],), ([2],)]


def test_unpublished_outputs_need_no_name(state: psycopg.Connection[Any]) -> None:
    for index in (0, 1):
        insert(state, "datasets", {**LEGAL["datasets"], "producer_output_index": index})


def test_edges_are_live_while_their_dag_version_is_active(state: psycopg.Connection[Any]) -> None:
    newer = {"id": uid("newer"), "yaml_hash": "h2", "dag_name": "dag"}
    insert(state, "dag_versions", {**LEGAL["dag_versions"], **newer})
    insert(state, "jobs", {**LEGAL["jobs"], "id": uid("newer job"), "dag_version_id": uid("newer")})
    insert(state, "job_inputs", LEGAL["job_inputs"])
    insert(state, "job_inputs", {**LEGAL["job_inputs"], "job_id": uid("newer job")})

    def live() -> set[uuid.UUID]:
        return {job for (job,) in state.execute("SELECT job_id FROM job_inputs WHERE live")}

    assert live() == set()
    insert(state, "dag_current_versions", LEGAL["dag_current_versions"])
    assert live() == {uid("job a")}
    change = "UPDATE dag_current_versions SET dag_version_id = %s WHERE org_id = %s"
    state.execute(change, (uid("newer"), uid("org a")))
    assert live() == {uid("newer job")}
    state.execute("DELETE FROM dag_current_versions")
    assert live() == set()


def test_ranges_are_written_half_open_and_shown_inclusive(state: psycopg.Connection[Any]) -> None:
    insert(state, "dataset_versions", {**LEGAL["dataset_versions"], **RANGE, "id": uid("ranged")})
    shown = state.execute("SELECT range_start, range_end FROM dataset_versions WHERE id = %s", (uid("ranged"),))
    assert shown.fetchone() == (10, 19)


HOT_TABLE = {
    "dataset_uuid": uid("data a"),
    "dataset_version": uid("version a"),
    "org_id": uid("org a"),
    "table_name": "blocks",
    "columns": '[{"name": "number", "type": "bigint"}]',
    "unique_key": ["number"],
}


@pytest.mark.parametrize(
    ("constraint", "broken"),
    [
        ("dataset_tables_pkey", {"table_name": "other"}),
        ("dataset_tables_table_once", {"dataset_version": uid("version b")}),
        ("dataset_tables_name_is_snake", {"dataset_version": uid("version b"), "table_name": "Blocks"}),
        ("dataset_tables_columns_are_listed", {"dataset_version": uid("version b"), "columns": "[]"}),
        ("dataset_tables_key_names_columns", {"dataset_version": uid("version b"), "unique_key": "{}"}),
    ],
)
def test_the_register_of_hot_tables_refuses_what_makes_no_sense(data_db: str, constraint: str, broken: Row) -> None:
    with psycopg.connect(data_db, options="-c search_path=trace_meta") as connection:
        insert(connection, "dataset_tables", HOT_TABLE)
        act = {**HOT_TABLE, **broken}
        assert refusal(connection, lambda: insert(connection, "dataset_tables", act)) == constraint


DELIVERY = {
    "id": uid("delivery"),
    "org_id": uid("org a"),
    "alert_definition_id": uid("alert a"),
    "alert_name": "whales",
    "dedupe_key": "k",
    "channel": "ops",
    "severity": "info",
    "event_time": T0,
    "event": "{}",
    "producer_task_id": uid("task a"),
}


@pytest.mark.parametrize(
    ("constraint", "broken"),
    [
        ("deliveries_pkey", {"dedupe_key": "other"}),
        ("deliveries_once", {"id": uid("other")}),
        ("deliveries_event_is_an_object", {"id": uid("other"), "event": "[]"}),
        ("deliveries_attempts_are_counted", {"id": uid("other"), "attempts": -1}),
        ("deliveries_settled_when_ended", {"id": uid("other"), "status": "Sent"}),
        (
            "deliveries_only_pending_is_leased",
            {"id": uid("other"), "status": "Sent", "settled_at": T0, "lease_token": uid("lease")},
        ),
    ],
)
def test_work_items_of_deliveries_refuse_what_makes_no_sense(data_db: str, constraint: str, broken: Row) -> None:
    with psycopg.connect(data_db, options="-c search_path=alerts") as connection:
        insert(connection, "deliveries", DELIVERY)
        act = {**DELIVERY, **broken}
        assert refusal(connection, lambda: insert(connection, "deliveries", act)) == constraint


def test_no_constraint_is_without_a_case(state: psycopg.Connection[Any]) -> None:
    there = state.execute("""
        SELECT conname FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace AND contype IN ('c', 'f', 'u', 'x')
        UNION SELECT tgname FROM pg_trigger WHERE tgfoid = 'refuse_change'::regproc
        UNION SELECT indexrelid::regclass::text FROM pg_index
        WHERE indisunique AND indpred IS NOT NULL AND indrelid::regclass::text !~ '^pg_'""")
    names = {name for (name,) in there if not name.endswith(IMPLIED)}
    tested = {case.constraint for case in CASES} | {change.constraint for change in CHANGES}
    assert names - tested == set()


def insert(connection: psycopg.Connection[Any], table: str, row: Row) -> None:
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join(sql.Placeholder() * len(row)),
    )
    connection.execute(statement, list(row.values()))


def update(connection: psycopg.Connection[Any], table: str, changes: Row, only: str | None = None) -> None:
    sets = [sql.SQL("{} = %s").format(sql.Identifier(column)) for column in changes]
    statement = sql.SQL("UPDATE {} SET {}").format(sql.Identifier(table), sql.SQL(", ").join(sets))
    if only:
        statement += sql.SQL(" WHERE id = {}").format(sql.Literal(str(uid(only))))
    assert connection.execute(statement, list(changes.values())).rowcount > 0


def refusal(connection: psycopg.Connection[Any], act: Callable[[], None]) -> str | None:
    """The name of the constraint that refused, so that a refusal for another reason does not pass."""
    with pytest.raises(psycopg.IntegrityError) as refused, connection.transaction():
        act()
    return refused.value.diag.constraint_name
