"""Takes snapshots of the three databases at one consistent point, while the system runs.

1. No file is deleted from now on until the backup is complete (`store/files_lock.py`).
2. For a moment nobody can write to data Postgres: every transaction that writes there changes a table of `trace_meta`
   or `alerts`, and these are locked.
3. The snapshot of the state database is taken, then those of data and queue.
4. Writers go on.

So nothing is committed in data Postgres between the snapshot of state and that of data. What state refers to (rows that
were written before a commit, batches that were applied before they were settled) is in data, and what data no longer
has (hot rows of compacted blocks) was not removed before state had the commit that replaces it. Queue messages that
have an effect in data cannot be processed meanwhile; others are repeated by the reconciler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tracelake.lite.backup.progress import BackupProgress
from tracelake.store.files_lock import try_to_hold_files
from tracelake.store.migrate import Database, connect, refusals
from tracelake.store.queries import queries

LOCK_WAIT: Final = "500ms"
"""Shorter than Postgres waits before it looks for a deadlock: a writer is never ended because of a backup."""


@dataclass(frozen=True)
class DatabaseSnapshot:
    """Of one database."""

    name: str
    """By which pg_dump reads it."""
    connection: psycopg.Connection[Any]
    """Reads it."""

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement.encode()).fetchall()


@contextmanager
def hold_all_files(state_dsn: str, progress: BackupProgress) -> Iterator[Callable[[], object]]:
    """No file is deleted from the object store while the block runs. Yields a function that raises if that failed."""
    with _opened(state_dsn, "state") as connection:
        while not try_to_hold_files(connection):
            progress.pause("waiting until no files are being deleted")
        yield lambda: connection.execute("SELECT 1")  # the lock is held as long as the connection exists


@contextmanager
def take_snapshots(
    dsns: Mapping[Database, str], progress: BackupProgress
) -> Iterator[Mapping[Database, DatabaseSnapshot]]:
    """They hold until the block is left."""
    order: tuple[Database, ...] = ("state", "data", "queue")
    with ExitStack() as held:
        readers = {name: held.enter_context(_opened(dsns[name], name)) for name in order}
        with _opened(dsns["data"], "data") as writers:
            _lock_writers(writers, progress)
            snapshots = {name: DatabaseSnapshot(_export(reader), reader) for name, reader in readers.items()}
        yield snapshots


@contextmanager
def _opened(dsn: str, database: Database) -> Iterator[psycopg.Connection[Any]]:
    with refusals(dsn, database), connect(dsn) as connection:
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        yield connection


def _lock_writers(connection: psycopg.Connection[Any], progress: BackupProgress) -> None:
    """Until the connection is closed. Stops waiting and tries again, so that writers never wait for long."""
    tables = connection.execute(queries("backup")["list_written_tables"].encode()).fetchall()
    lock = sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(
        sql.SQL(", ").join(sql.Identifier(schema, table) for schema, table in tables)
    )
    connection.execute(f"SET lock_timeout = '{LOCK_WAIT}'")
    while True:
        connection.execute("BEGIN")
        try:
            connection.execute(lock)
        except psycopg.errors.LockNotAvailable:
            connection.execute("ROLLBACK")
            progress.pause("waiting for a moment in which nothing writes to data Postgres")
        else:
            return


def _export(connection: psycopg.Connection[Any]) -> str:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    ((name,),) = connection.execute("SELECT pg_export_snapshot()").fetchall()
    return str(name)
