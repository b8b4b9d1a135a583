"""Each role can do its own work and nothing else, whether a superuser made it or the admin of a managed server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.support.postgres import RunningServer
from tests.support.waiting import wait_until
from tracelake.data.delivery_items import Item, store_items
from tracelake.errors import DatabaseUnavailable, SchemaMismatch, SettingsError
from tracelake.store.migrate import check, migrate
from tracelake.store.queries import queries
from tracelake.store.roles import DATABASES, ROLES, Instance, ensure_databases, ensure_roles

INSTANCES: tuple[Instance, ...] = ("state", "data")
EVERY_ROLE = [role for instance in INSTANCES for role in ROLES[instance]]
EVERY_DATABASE = [name for instance in INSTANCES for name in DATABASES[instance]]
HOME = {"dispatcher": "state", "worker": "data", "query": "data", "queue": "queue", "delivery": "data"}

MADE_BY_WORKER = """
    CREATE TABLE hot.made_by_worker (x int);
    INSERT INTO hot.made_by_worker VALUES (1);
"""
REGISTER = """
    INSERT INTO trace_meta.dataset_tables (dataset_uuid, dataset_version, org_id, table_name, columns, unique_key)
    VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'blocks', '[{"name": "x"}]', '{x}')"""


ADD_DELIVERY = """
    INSERT INTO alerts.deliveries (id, org_id, alert_definition_id, alert_name, dedupe_key, channel, severity,
                                   event_time, event, producer_task_id)
    VALUES ('00000000-0000-0000-0000-000000000001', gen_random_uuid(), gen_random_uuid(), 'a', 'k', 'c', 'info',
            now(), '{}', gen_random_uuid())
    ON CONFLICT DO NOTHING"""


@dataclass(frozen=True)
class Server:
    """Both instances on one server: rights that are separate here are all the more between two servers."""

    postgres: RunningServer
    admin: str
    passwords: dict[str, str]

    def connect(self, role: str, database: str) -> psycopg.Connection[Any]:
        dsn = self.postgres.cluster.dsn(database, role, self.passwords[role])
        return psycopg.connect(dsn, autocommit=True, connect_timeout=5)

    def words_of(self, instance: Instance) -> dict[str, str]:
        return {role: self.passwords[role] for role in ROLES[instance]}


@pytest.fixture(scope="module", params=["superuser", "managed"])
def server(postgres: RunningServer, request: pytest.FixtureRequest) -> Iterator[Server]:
    admin = postgres.dsn("postgres")
    with psycopg.connect(admin, autocommit=True) as root:
        if request.param == "managed":
            root.execute("CREATE ROLE managed LOGIN CREATEDB CREATEROLE PASSWORD 'managed'")
            admin = postgres.cluster.dsn("postgres", "managed", "managed")
        passwords = {role: uuid.uuid4().hex for role in EVERY_ROLE}
        made = Server(postgres, admin, passwords)
        try:
            provision(made)
            with made.connect("worker", "data") as worker:
                worker.execute(MADE_BY_WORKER)
            yield made
        finally:
            root.execute("GRANT ALL ON DATABASE postgres, template1 TO PUBLIC")
            for name in EVERY_DATABASE:
                root.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
            for role in [*EVERY_ROLE, "managed"]:
                root.execute(f"DROP ROLE IF EXISTS {role}".encode())


def provision(server: Server) -> None:
    for instance in INSTANCES:
        ensure_databases(server.admin, instance)
        for database in DATABASES[instance]:
            migrate(at(server.admin, database), database)  # type: ignore[arg-type]
        ensure_roles(server.admin, instance, server.words_of(instance))


def at(dsn: str, database: str) -> str:
    return dsn.replace("/postgres?", f"/{database}?")


ALLOWED = [
    ("dispatcher", "INSERT INTO orgs (name, slug) VALUES ('x', 'x')"),
    ("dispatcher", "INSERT INTO outbox (org_id, kind, payload) VALUES (gen_random_uuid(), 'enqueue_task', '{}')"),
    ("dispatcher", "UPDATE orgs SET name = 'y'"),
    ("dispatcher", "DELETE FROM outbox"),
    ("dispatcher", "SELECT pg_notify('outbox', '')"),
    ("worker", "CREATE TABLE hot.another (x int)"),
    ("worker", "INSERT INTO hot.made_by_worker VALUES (2)"),
    ("worker", "CREATE TEMPORARY TABLE staged (x int)"),
    ("worker", REGISTER),
    ("worker", "SELECT nextval('trace_meta.hot_seq')"),
    ("worker", "CREATE UNLOGGED TABLE staging.batch (x int)"),
    ("worker", "DELETE FROM trace_meta.hot_blocks"),
    ("query", "SELECT * FROM trace_meta.hot_blocks"),
    ("query", "SELECT pg_export_snapshot()"),
    ("query", "SELECT * FROM hot.made_by_worker"),
    ("query", "SELECT * FROM trace_meta.dataset_tables"),
    ("worker", ADD_DELIVERY),
    ("worker", ADD_DELIVERY),  # once more: it is there, and that is fine
    ("delivery", "SELECT * FROM alerts.deliveries"),
    ("delivery", "SELECT id FROM alerts.deliveries FOR UPDATE SKIP LOCKED"),
    ("delivery", "UPDATE alerts.deliveries SET attempts = attempts + 1, due_at = now()"),
    ("delivery", "LISTEN alert_deliveries"),
    ("delivery", "SELECT alerts.prune_deliveries('1 day', 10)"),
    ("queue", "SELECT * FROM pgqueue.publish('q', ARRAY['{}'::bytea], ARRAY['0 s'::interval])"),
    ("queue", "LISTEN anything"),
]

REFUSED = [
    ("dispatcher", "CREATE TABLE mine (x int)"),
    ("dispatcher", "CREATE TEMPORARY TABLE mine (x int)"),
    ("dispatcher", "CREATE SCHEMA mine"),
    ("dispatcher", "ALTER TABLE tasks DISABLE TRIGGER ALL"),
    ("dispatcher", "ALTER TABLE tasks DROP CONSTRAINT tasks_running_is_leased"),
    ("dispatcher", "DROP TABLE tasks"),
    ("dispatcher", "TRUNCATE tasks CASCADE"),
    ("dispatcher", "DELETE FROM trace_migrations.applied"),
    ("dispatcher", "CREATE ROLE mine"),
    ("dispatcher", "CREATE DATABASE mine"),
    ("dispatcher", "COPY orgs TO PROGRAM 'true'"),
    ("dispatcher", "SELECT pg_read_file('postgresql.conf')"),
    ("worker", "CREATE TABLE public.mine (x int)"),
    ("worker", "CREATE TABLE trace_meta.mine (x int)"),
    ("worker", "DROP TABLE trace_meta.dataset_tables"),
    ("worker", "CREATE SCHEMA mine"),
    ("worker", "DELETE FROM trace_migrations.applied"),
    ("worker", "SET ROLE query"),
    ("query", "INSERT INTO hot.made_by_worker VALUES (3)"),
    ("query", "UPDATE hot.made_by_worker SET x = 3"),
    ("query", "DELETE FROM hot.made_by_worker"),
    ("query", "TRUNCATE hot.made_by_worker"),
    ("query", "CREATE TABLE hot.mine (x int)"),
    ("query", "CREATE TABLE staging.mine (x int)"),
    ("query", "SELECT nextval('trace_meta.hot_seq')"),
    ("query", "DELETE FROM trace_meta.hot_blocks"),
    ("query", "CREATE TEMPORARY TABLE mine (x int)"),
    ("query", REGISTER),
    ("query", "SET ROLE worker"),
    ("query", "SELECT * FROM alerts.deliveries"),
    ("worker", "SELECT * FROM alerts.deliveries"),
    ("worker", "UPDATE alerts.deliveries SET status = 'Pending'"),
    ("worker", "DELETE FROM alerts.deliveries"),
    ("worker", "CREATE TABLE alerts.mine (x int)"),
    ("delivery", ADD_DELIVERY),
    ("delivery", "UPDATE alerts.deliveries SET org_id = gen_random_uuid()"),
    ("delivery", "UPDATE alerts.deliveries SET event = '{}'"),
    ("delivery", "DELETE FROM alerts.deliveries"),
    ("delivery", "TRUNCATE alerts.deliveries"),
    ("worker", "SELECT alerts.prune_deliveries('1 day', 10)"),
    ("query", "SELECT alerts.prune_deliveries('1 day', 10)"),
    ("delivery", "SELECT * FROM hot.made_by_worker"),
    ("delivery", "SELECT * FROM trace_meta.dataset_tables"),
    ("delivery", "CREATE TABLE alerts.mine (x int)"),
    ("delivery", "CREATE TEMPORARY TABLE mine (x int)"),
    ("delivery", "SET ROLE worker"),
    ("queue", "SELECT * FROM pgqueue.messages"),
    ("queue", "SELECT * FROM pgqueue.dead_letters"),
    ("queue", "DELETE FROM pgqueue.messages"),
    ("queue", "CREATE TABLE pgqueue.mine (x int)"),
    ("queue", "CREATE TABLE public.mine (x int)"),
    ("queue", "CREATE TEMPORARY TABLE mine (x int)"),
    ("queue", "SELECT * FROM trace_migrations.applied"),
]


@pytest.mark.parametrize(("role", "statement"), ALLOWED)
def test_a_role_can_do_its_own_work(server: Server, role: str, statement: str) -> None:
    with server.connect(role, HOME[role]) as connection:
        connection.execute(statement.encode())


@pytest.mark.parametrize(("role", "statement"), REFUSED)
def test_a_role_can_do_nothing_else(server: Server, role: str, statement: str) -> None:
    """Also with read-only transactions switched off, which any role may do for itself."""
    with server.connect(role, HOME[role]) as connection:
        connection.execute("SET default_transaction_read_only = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.encode())


def test_routing_and_delivering_need_no_more_than_their_roles_have(server: Server) -> None:
    item = Item(uuid.uuid4(), uuid.uuid4(), "whales", "k", "ops", "info", datetime.now(UTC), "{}")
    worker = server.postgres.cluster.dsn("data", "worker", server.passwords["worker"])
    assert [store_items(worker, uuid.uuid4(), uuid.uuid4(), [item]) for _ in range(2)] == [1, 0]
    with server.connect("delivery", "data") as connection:
        for statement in queries("deliveries").values():
            connection.execute(f"EXPLAIN (GENERIC_PLAN) {statement}".encode())


@pytest.mark.parametrize("role", EVERY_ROLE)
def test_a_role_can_connect_to_its_own_database_and_to_no_other(server: Server, role: str) -> None:
    with psycopg.connect(server.postgres.dsn("postgres")) as root:
        open_on_managed = {"postgres", "template1"} if "managed" in server.admin else set()
        ours = {*EVERY_DATABASE, "postgres", "template1"} - open_on_managed
        for database in ours:
            allowed = root.execute("SELECT has_database_privilege(%s, %s, 'CONNECT')", (role, database)).fetchone()
            assert allowed == (database == HOME[role],)
    for database in ours - {HOME[role]}:
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            server.connect(role, database)


@pytest.mark.parametrize("role", EVERY_ROLE)
def test_a_role_needs_its_password(server: Server, role: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.postgres.cluster.dsn(HOME[role], role, "guess"))


def test_the_query_role_reads_in_read_only_transactions(server: Server) -> None:
    with server.connect("query", "data") as connection:
        assert connection.execute("SHOW transaction_read_only").fetchone() == ("on",)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("SELECT lo_unlink(0)")


def test_the_query_role_cannot_write_large_objects(server: Server) -> None:
    if "managed" in server.admin:
        pytest.skip("only a superuser can take this right from everyone")
    with server.connect("query", "data") as connection:
        connection.execute("SET default_transaction_read_only = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT lo_from_bytea(0, 'x')")


def test_the_dispatcher_may_use_what_a_later_migration_makes(server: Server) -> None:
    with psycopg.connect(at(server.admin, "state"), autocommit=True) as admin:
        admin.execute("CREATE TABLE later (x int GENERATED ALWAYS AS IDENTITY)")
    with server.connect("dispatcher", "state") as connection:
        connection.execute("INSERT INTO later DEFAULT VALUES")
        connection.execute("SELECT * FROM later")


def test_the_queue_role_may_call_what_a_later_migration_makes_but_not_read_it(server: Server) -> None:
    with psycopg.connect(at(server.admin, "queue"), autocommit=True) as admin:
        admin.execute("CREATE TABLE pgqueue.later (x int)")
        admin.execute("CREATE FUNCTION pgqueue.later() RETURNS int LANGUAGE sql RETURN 1")
    with server.connect("queue", "queue") as connection:
        connection.execute("SELECT pgqueue.later()")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM pgqueue.later")


@pytest.mark.parametrize(
    ("role", "database"), [("dispatcher", "state"), ("worker", "data"), ("query", "data"), ("delivery", "data")]
)
def test_a_process_can_check_the_schema_with_its_own_role(server: Server, role: str, database: Any) -> None:
    check(server.postgres.cluster.dsn(database, role, server.passwords[role]), database)


def test_doing_it_again_changes_nothing_but_takes_back_what_was_added(server: Server) -> None:
    with psycopg.connect(at(server.admin, "data"), autocommit=True) as admin:
        admin.execute("GRANT INSERT ON trace_meta.dataset_tables TO query")
        admin.execute("ALTER ROLE query CREATEDB")
    provision(server)
    with server.connect("query", "data") as connection:
        connection.execute("SELECT * FROM hot.made_by_worker")
        connection.execute("SET default_transaction_read_only = off")
        for statement in (REGISTER, "CREATE DATABASE mine"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_several_at_once_do_not_trip_over_each_other(server: Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: provision(server), range(4)))


def test_a_new_password_replaces_the_old_one(server: Server) -> None:
    old = server.postgres.cluster.dsn("state", "dispatcher", server.passwords["dispatcher"])
    server.passwords["dispatcher"] = "next"
    ensure_roles(server.admin, "state", server.words_of("state"))
    server.connect("dispatcher", "state").close()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(old)


def test_a_password_never_reaches_the_log_of_the_server(server: Server) -> None:
    with psycopg.connect(server.postgres.dsn("postgres"), autocommit=True) as root:
        root.execute("ALTER SYSTEM SET log_statement = 'all'")
        root.execute("SELECT pg_reload_conf()")
        try:
            wait_until(lambda: "all" in setting(server, "log_statement"), "the setting is in effect")
            server.passwords["dispatcher"] = "s3cret"
            ensure_roles(server.admin, "state", server.words_of("state"))
        finally:
            root.execute("ALTER SYSTEM RESET log_statement")
            root.execute("SELECT pg_reload_conf()")
    log = server.postgres.log.read_text()
    assert "SCRAM-SHA-256$" in log
    assert "s3cret" not in log


def setting(server: Server, name: str) -> str:
    with psycopg.connect(server.admin) as connection:
        row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize(
    "passwords", [{}, {"dispatcher": ""}, {"dispatcher": "x", "worker": "x"}], ids=["none", "empty", "too many"]
)
def test_each_role_of_the_instance_needs_a_password(postgres: RunningServer, passwords: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="the roles of the state instance are dispatcher"):
        ensure_roles(postgres.dsn("postgres"), "state", passwords)


def test_a_server_that_is_away_is_one_sentence() -> None:
    with pytest.raises(DatabaseUnavailable) as refused:
        ensure_databases("postgresql://trace:s3cret@127.0.0.1:1/postgres", "state")
    assert "s3cret" not in repr(refused.value.as_dict())


def test_an_admin_without_the_right_gets_a_clear_error(server: Server) -> None:
    dsn = server.postgres.cluster.dsn("state", "dispatcher", server.passwords["dispatcher"])
    with pytest.raises(SchemaMismatch, match="refused"):
        ensure_roles(dsn, "state", {"dispatcher": "x"})
