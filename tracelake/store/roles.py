"""Databases of an instance, and the roles that may enter them: each sees its own part and nothing else.

    instance   database   role         may
    state      state      dispatcher   read and write rows
    data       data       worker       read and write rows; make tables in schema hot
    data       data       query        read
    data       data       delivery     read, end and prune work items of deliveries
    data       queue      queue        call the functions of schema pgqueue

The order is: `ensure_databases`, then `migrate` for each database, then `ensure_roles`. All of it can be repeated, and
repeating it takes back table rights that were added by hand. An admin that is no superuser, as managed servers have it,
will do if it may create databases and roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tracelake.errors import SettingsError
from tracelake.store.migrate import CONNECT_TIMEOUT_SECONDS, LOCK, LOCK_WAIT_SECONDS, parameters, refusals

Instance = Literal["state", "data"]

DATABASES: Final[Mapping[Instance, tuple[str, ...]]] = {"state": ("state",), "data": ("data", "queue")}
ROLES: Final[Mapping[Instance, tuple[str, ...]]] = {
    "state": ("dispatcher",),
    "data": ("worker", "query", "queue", "delivery"),
}
POWERS: Final = {
    "rolsuper": "NOSUPERUSER",
    "rolcreaterole": "NOCREATEROLE",
    "rolcreatedb": "NOCREATEDB",
    "rolreplication": "NOREPLICATION",
    "rolbypassrls": "NOBYPASSRLS",
}
SQL: Final = Path(__file__).parent / "sql"


def ensure_databases(admin_dsn: str, instance: Instance) -> None:
    """Make the instance's databases where they are missing, and close every database to whom it was not opened."""
    with refusals(admin_dsn, instance), _locked(admin_dsn) as admin:
        there = {name for (name,) in admin.execute("SELECT datname FROM pg_database")}
        for name in DATABASES[instance]:
            if name not in there:
                admin.execute(_create_database(name))
            admin.execute(_close(name))
        for name in {"postgres", "template1"} & there:
            # Without these, a role could look around there; a managed server may keep them to itself.
            with suppress(psycopg.errors.InsufficientPrivilege):
                admin.execute(_close(name))


def ensure_roles(admin_dsn: str, instance: Instance, passwords: Mapping[str, str]) -> None:
    """Make the instance's roles with these passwords, and grant each its part of the migrated databases."""
    _refuse_other_names(passwords, instance)
    with refusals(admin_dsn, instance), _locked(admin_dsn) as admin:
        for role in ROLES[instance]:
            _ensure_role(admin, role, passwords[role])
        for database in DATABASES[instance]:
            with _connect(admin_dsn, database) as connection, connection.transaction():
                connection.execute((SQL / f"roles_{database}.sql").read_bytes())


def _create_database(name: str) -> sql.Composed:
    # The built-in locale sorts the same on every machine; a library's changes with the system's.
    options = "TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'"
    return sql.SQL("CREATE DATABASE {} " + options).format(sql.Identifier(name))


def _close(database: str) -> sql.Composed:
    """By default everyone may connect and make temporary tables."""
    return sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database))


def _refuse_other_names(passwords: Mapping[str, str], instance: Instance) -> None:
    wrong = sorted(set(passwords) ^ set(ROLES[instance]))
    empty = sorted(role for role, password in passwords.items() if not password)
    if wrong or empty:
        raise SettingsError(
            f"the roles of the {instance} instance are {', '.join(ROLES[instance])}, and each needs a password",
            where=", ".join(wrong or empty),
        )


def _ensure_role(admin: psycopg.Connection[Any], role: str, password: str) -> None:
    name = sql.Identifier(role)
    there = admin.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).rowcount
    if not there:
        admin.execute(sql.SQL("CREATE ROLE {}").format(name))
    for power, none in POWERS.items():
        # One by one, and only if it is there: some of them only a superuser may even take away.
        if admin.execute(f"SELECT FROM pg_roles WHERE rolname = %s AND {power}", (role,)).rowcount:
            admin.execute(sql.SQL("ALTER ROLE {} " + none).format(name))
    _stand_behind(admin, name)
    # Hashed here, so that no log of the server can hold the password.
    verifier = admin.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    admin.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(verifier)))
    if role == "query":
        # It has no right to write; this also ends whatever a function would do.
        admin.execute(sql.SQL("ALTER ROLE {} SET default_transaction_read_only = on").format(name))


def _stand_behind(admin: psycopg.Connection[Any], role: sql.Identifier) -> None:
    """Only a superuser or a member may say what becomes of the tables that a role makes."""
    answer = admin.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    if answer is not None and not answer[0]:
        admin.execute(sql.SQL("GRANT {} TO CURRENT_USER WITH INHERIT TRUE").format(role))


@contextmanager
def _locked(admin_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Roles are shared by all databases of a server; two who change them at once trip over each other."""
    with _connect(admin_dsn) as admin:
        admin.execute(f"SET lock_timeout = '{LOCK_WAIT_SECONDS}s'")
        admin.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        yield admin


def _connect(dsn: str, database: str | None = None) -> psycopg.Connection[Any]:
    parts = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, **parameters(dsn)}
    if database is not None:
        parts["dbname"] = database
    return psycopg.connect(make_conninfo("", **parts), autocommit=True)
