"""Migrates a database to the schema that this code expects, and checks that it has it.

The schema is plain SQL in `migrations/{state,data,queue}`, forward only. Postgres itself reads each file, as one query:

- A migration and its record are one transaction, so a crash between the two cannot leave a database in between.
- Concurrent migrations wait for a Postgres advisory lock, which ends with its session.
- The SHA-256 of every applied file is stored, so that a file that changed afterwards is found.
- A database that is newer than the code is refused.

The records have a schema of their own, `trace_migrations`, so that no grant on the tables of Trace covers them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tracelake.errors import DatabaseUnavailable, SchemaMismatch, SettingsError

Database = Literal["state", "data", "queue"]

MIGRATIONS: Final = Path(__file__).parent / "migrations"
RECORDS: Final = "trace_migrations"
LOCK: Final = 0x7472616365  # "trace": any number will do, as long as every version of this code uses the same
LOCK_WAIT_SECONDS: Final = 120
CONNECT_TIMEOUT_SECONDS: Final = 10


def migrate(dsn: str, database: Database) -> list[str]:
    """Applies pending migrations in the order of their file names, and returns their names."""
    with refusals(dsn, database), connect(dsn) as connection:
        _lock_records(connection)
        files, applied = _files(database), _applied(connection)
        _refuse_unknown_or_changed(files, applied, database)
        missing = [name for name in files if name not in applied]
        for name in missing:
            _apply(connection, name, files[name], database)
        return missing


def pending(dsn: str, database: Database) -> list[str]:
    """What `migrate` would apply; needs no more than the right to read."""
    with refusals(dsn, database), connect(dsn) as connection:
        files, applied = _files(database), _applied(connection)
    return [name for name in files if name not in applied]


def check(dsn: str, database: Database) -> None:
    """Raises SchemaMismatch unless the database has exactly the migrations of this code, with the same contents."""
    with refusals(dsn, database), connect(dsn) as connection:
        files, applied = _files(database), _applied(connection)
    _refuse_unknown_or_changed(files, applied, database)
    missing = [name for name in files if name not in applied]
    if missing:
        raise SchemaMismatch(
            f"the {database} database lacks {_named(missing)}",
            where=missing[0],
            hint="run `trace db migrate`; `trace up` does so by itself",
        )


@contextmanager
def refusals(dsn: str, database: str) -> Iterator[None]:
    """Turns driver errors inside the block into typed errors without the password."""
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        raise DatabaseUnavailable(
            f"another process has been changing the {database} database for more than {LOCK_WAIT_SECONDS} s",
            where=address(dsn),
            hint="wait for it to end, or look for a hung one in pg_stat_activity",
        ) from None
    except psycopg.OperationalError as wrong:
        raise DatabaseUnavailable(
            f"the {database} database does not answer: {_sentence(wrong, dsn)}",
            where=address(dsn),
            hint="check that the server runs and that the DSN names it",
        ) from None
    except psycopg.Error as wrong:
        raise SchemaMismatch(
            f"the {database} database refused: {_sentence(wrong, dsn)}",
            where=address(dsn),
            hint="check that the DSN names a role that may do this",
        ) from None


def address(dsn: str) -> str:
    """Host, port and database of a DSN, to be shown: never the password."""
    parts = parameters(dsn)
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def parameters(dsn: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # The driver's message repeats the text, which may contain the password.
        raise SettingsError(
            "a database DSN cannot be read",
            hint="write it as postgresql://user:password@host:port/database, with special characters as %XX",
        ) from None


def connect(dsn: str, database: str | None = None) -> psycopg.Connection[Any]:
    """Connects to the database of the DSN, or to another one on its server."""
    parts = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, **parameters(dsn)}
    if database is not None:
        parts["dbname"] = database
    return psycopg.connect(make_conninfo("", **parts), autocommit=True)


def _lock_records(connection: psycopg.Connection[Any]) -> None:
    """Locks the records until this connection ends, and creates them if they are missing."""
    connection.execute(f"SET lock_timeout = '{LOCK_WAIT_SECONDS}s'")
    connection.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
    connection.execute("SET lock_timeout = 0")
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {RECORDS}")
    connection.execute(f"""
        CREATE TABLE IF NOT EXISTS {RECORDS}.applied (
            id text PRIMARY KEY,
            sha256 text NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now()
        )""")


def _files(database: Database) -> dict[str, str]:
    """The name and hash of every migration of this code, in order."""
    paths = sorted((MIGRATIONS / database).glob("*.sql"))
    return {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _applied(connection: psycopg.Connection[Any]) -> dict[str, str]:
    known = connection.execute("SELECT to_regclass('trace_migrations.applied') IS NOT NULL").fetchone()
    if known is None or not known[0]:
        return {}
    rows = connection.execute("SELECT id, sha256 FROM trace_migrations.applied ORDER BY id")
    return dict(rows.fetchall())


def _refuse_unknown_or_changed(files: dict[str, str], applied: dict[str, str], database: Database) -> None:
    unknown = [name for name in applied if name not in files]
    if unknown:
        raise SchemaMismatch(
            f"the {database} database is newer than this code: it has {_named(unknown)}",
            where=unknown[0],
            hint="run the version of Trace that migrated it, or a later one",
        )
    changed = [name for name, sha256 in applied.items() if files[name] != sha256]
    if changed:
        raise SchemaMismatch(
            f"{_named(changed)} of the {database} database changed after it was applied",
            where=changed[0],
            hint="put the file back as it was, and write the change as a new migration",
        )


def _apply(connection: psycopg.Connection[Any], name: str, sha256: str, database: Database) -> None:
    try:
        _run_and_record(connection, name, sha256, database)
    except psycopg.OperationalError:
        raise
    except psycopg.Error as wrong:
        raise SchemaMismatch(
            f"migration {name} of the {database} database failed: {_sentence(wrong)}",
            where=name,
            hint="it was rolled back; the migrations before it were applied",
        ) from None


def _run_and_record(connection: psycopg.Connection[Any], name: str, sha256: str, database: Database) -> None:
    statements = (MIGRATIONS / database / f"{name}.sql").read_bytes()
    with connection.transaction():
        connection.execute("SET LOCAL search_path TO public")
        connection.execute(statements)
        connection.execute(f"INSERT INTO {RECORDS}.applied (id, sha256) VALUES (%s, %s)", (name, sha256))  # noqa: S608


def _named(names: list[str]) -> str:
    rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"migration {names[0]}{rest}"


def _sentence(wrong: psycopg.Error, dsn: str = "") -> str:
    """The first line of the server's message; the rest is context."""
    message = wrong.diag.message_primary or next(iter(str(wrong).splitlines()), type(wrong).__name__)
    password = parameters(dsn).get("password")
    return message.replace(str(password), "***") if password else message
