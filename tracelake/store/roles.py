"""Creates the databases of an instance and the roles that may use them, each with its own rights.

    instance   database   role         may
    state      state      dispatcher   read and write rows
    data       data       worker       read and write rows; make tables in schema hot
    data       data       query        read
    data       data       delivery     read, end and prune work items of deliveries
    data       queue      queue        call the functions of schema pgqueue

The order is: `ensure_databases`, then `migrate` for each database, then `ensure_roles`. All of it can be repeated;
repeating it revokes table rights that were added by hand. An admin that is no superuser, as on managed servers, needs
the rights to create databases and roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import psycopg
from psycopg import sql

from tracelake.errors import SettingsError
from tracelake.store.migrate import LOCK, LOCK_WAIT_SECONDS, connect, refusals

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
    """Creates the instance's databases where they are missing, and revokes the rights of PUBLIC on every database."""
    with refusals(admin_dsn, instance), _locked(admin_dsn) as admin:
        existing = {name for (name,) in admin.execute("SELECT datname FROM pg_database")}
        for name in DATABASES[instance]:
            if name not in existing:
                admin.execute(_create_database(name))
            admin.execute(_revoke_public(name))
        for name in {"postgres", "template1"} & existing:
            # Else every role could connect to them; a managed server may not allow this.
            with suppress(psycopg.errors.InsufficientPrivilege):
                admin.execute(_revoke_public(name))


def ensure_roles(admin_dsn: str, instance: Instance, passwords: Mapping[str, str]) -> None:
    """Creates the instance's roles with these passwords, and grants each its rights on the migrated databases."""
    _refuse_other_names(passwords, instance)
    with refusals(admin_dsn, instance), _locked(admin_dsn) as admin:
        for role in ROLES[instance]:
            _ensure_role(admin, role, passwords[role])
        for database in DATABASES[instance]:
            with connect(admin_dsn, database) as connection, connection.transaction():
                connection.execute((SQL / f"roles_{database}.sql").read_bytes())


def ensure_role_names(admin_dsn: str, instance: Instance) -> None:
    """Creates the instance's roles without login or rights, to own what is loaded; `ensure_roles` does the rest."""
    with refusals(admin_dsn, instance), _locked(admin_dsn) as admin:
        for role in ROLES[instance]:
            if not admin.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).rowcount:
                admin.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))


def _create_database(name: str) -> sql.Composed:
    # The built-in locale sorts the same on every machine; that of a library changes with the system.
    options = "TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'"
    return sql.SQL("CREATE DATABASE {} " + options).format(sql.Identifier(name))


def _revoke_public(database: str) -> sql.Composed:
    """By default every role may connect and create temporary tables."""
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
    _join_role(admin, name)
    # Hashed here, so that no log of the server can hold the password.
    verifier = admin.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    admin.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(verifier)))
    if role == "query":
        # It has no right to write; this also stops functions that would.
        admin.execute(sql.SQL("ALTER ROLE {} SET default_transaction_read_only = on").format(name))


def _join_role(admin: psycopg.Connection[Any], role: sql.Identifier) -> None:
    """Only a superuser or a member may alter the default privileges of a role."""
    superuser = admin.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    if superuser is not None and not superuser[0]:
        admin.execute(sql.SQL("GRANT {} TO CURRENT_USER WITH INHERIT TRUE").format(role))


@contextmanager
def _locked(admin_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Serializes changes of roles, which all databases of a server share."""
    with connect(admin_dsn) as admin:
        admin.execute(f"SET lock_timeout = '{LOCK_WAIT_SECONDS}s'")
        admin.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        yield admin
