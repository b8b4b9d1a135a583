"""What a reader of a hot table sees: which numbers come from it, at one moment, for one pinned commit.

    number has a mark that is not compacted, or only in a later commit      from the hot table
    number was taken back by a reorg and did not come again                 from nowhere
    any other number                                                        from the Parquet files of the commit

A view is taken in one snapshot of Postgres. While `held` keeps that snapshot open, every partition of a Spark job, also
one that is tried again, reads in it. Without it (or when it was lost) each partition checks that what it reads is still
what the view saw, and refuses with SnapshotMoved if a writer came between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from tracelake.data.hot.tables import HotTable
from tracelake.data.statements import statements
from tracelake.errors import DatabaseUnavailable, NotFound, SnapshotTooOld


@dataclass(frozen=True)
class Run:
    """Numbers from `start` to before `stop`."""

    start: int
    stop: int


@dataclass(frozen=True)
class HotView:
    """A range of a hot table, as of one snapshot and one commit."""

    table: HotTable
    start: int
    stop: int
    commit: int
    runs: tuple[Run, ...]
    """Which of them are hot; the others are cold or gone."""
    gone: Run | None
    up_to_seq: int
    """The highest seq among them, which a compaction passes to `mark_compacted`."""
    snapshot: str | None
    """The exported name of the snapshot, while it is held."""


@dataclass(frozen=True)
class HeldSnapshot:
    """A snapshot of data Postgres, held by this connection."""

    connection: psycopg.Connection[Any]
    name: str


@contextmanager
def held(dsn: str) -> Iterator[HeldSnapshot]:
    """Hold a snapshot while Spark jobs read in it. Keep it short: meanwhile Postgres cannot vacuum."""
    with _reading(dsn) as connection:
        row = connection.execute("SELECT pg_export_snapshot()").fetchone()
        yield HeldSnapshot(connection, str(row[0]) if row else "")


def view_of(held_snapshot: HeldSnapshot, table: HotTable, *, start: int, stop: int, commit: int) -> HotView:
    """Return which numbers of [start, stop) are hot for a reader of `commit`; raises if needed rows were swept."""
    connection = held_snapshot.connection
    values = {"version": table.dataset_version, "start": start, "stop": stop, "commit": commit}
    extent = connection.execute(statements("hot")["extent"], values).fetchone()
    if extent is None:
        raise NotFound("there is no hot table for this generation", where=table.name)
    _refuse_holes(connection, values)
    rows = connection.execute(statements("hot")["runs"], values).fetchall()
    return HotView(
        table=table,
        start=start,
        stop=stop,
        commit=commit,
        runs=tuple(Run(first, last) for first, last, _ in rows),
        gone=None if extent[0] is None else Run(extent[0], extent[1] + 1),
        up_to_seq=max((seq for *_, seq in rows), default=0),
        snapshot=held_snapshot.name or None,
    )


def _refuse_holes(connection: psycopg.Connection[Any], values: dict[str, Any]) -> None:
    row = connection.execute(statements("hot")["holes"], values).fetchone()
    if row is not None and row[0] not in (None, "{}"):
        raise SnapshotTooOld(
            f"commit {values['commit']} needs blocks {row[0]} from the hot table, which were swept since",
            where=f"commit {values['commit']}",
            hint="read at a later commit, or sweep rows later",
        )


@contextmanager
def _reading(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    connection = _connect(dsn)
    try:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        # The server ends sessions that idle in a transaction, but a held snapshot idles; it ends with this process.
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield connection
    finally:
        connection.close()


def _connect(dsn: str) -> psycopg.Connection[Any]:
    try:
        return psycopg.connect(dsn, autocommit=True, connect_timeout=10)
    except psycopg.OperationalError:
        raise DatabaseUnavailable("the data database does not answer", hint="check that it runs") from None
