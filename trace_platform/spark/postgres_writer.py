"""A DataFrame into a Postgres table: all of it or nothing, by key.

    stage     Python workers fill one unlogged table in parallel, by ADBC; each row says which try of a task wrote it
    merge     one transaction of the driver: INSERT ... SELECT ... ORDER BY key ON CONFLICT, from the tries that counted
    drop      the staging table goes; one that a kill left is removed by `sweep_staging`

A kill at any moment leaves the target as it was, or complete. `merge` runs in the caller's transaction if there is one:
what else the caller writes there (which batch this was) is kept or lost with the rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from trace_platform.errors import BadInput
from trace_platform.spark.copy_rows import refused
from trace_platform.spark.postgres_sql import Column, columns_of
from trace_platform.spark.secret_dsn import SecretDsn
from trace_platform.spark.stage_rows import TRY, stager
from trace_platform.spark.statements import statements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORK_MEMORY: Final = "128MB"
"""For the sort of one merge: rows that come in the order of the key are written up to twice as fast."""


@dataclass(frozen=True)
class Staged:
    """Rows that wait in a staging table."""

    name: str
    columns: tuple[str, ...]
    tries: tuple[int, ...]
    """Of Spark tasks whose rows count; a try that failed late or was repeated is not among them."""
    rows: int

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier("staging", self.name)


@dataclass(frozen=True)
class Merged:
    """What a merge did; rows that were there and stayed are in neither."""

    inserted: int
    updated: int


def upsert(
    connection: psycopg.Connection[Any],
    dsn: str,
    rows: DataFrame,
    table: str,
    key: Sequence[str],
    *,
    keep_old: bool = False,
    newest_by: str | None = None,
) -> Merged:
    """Stage, merge and drop. The connection must be of the same database as `dsn`, which the workers use."""
    with staged(connection, dsn, rows) as batch, connection.transaction():
        return merge(connection, batch, table, key, keep_old=keep_old, newest_by=newest_by)


@contextmanager
def staged(connection: psycopg.Connection[Any], dsn: str, rows: DataFrame) -> Iterator[Staged]:
    """The DataFrame in a staging table, which is dropped at the end. Enter it outside any transaction."""
    columns = columns_of(rows.schema)
    name = make_staging(connection, columns)
    try:
        tries = rows.mapInArrow(stager(SecretDsn(dsn), name, columns), "try long, rows long").collect()
        yield Staged(name, tuple(columns), tuple(row[0] for row in tries), sum(row[1] for row in tries))
    finally:
        drop_staging(connection, name)


def merge(
    connection: psycopg.Connection[Any],
    batch: Staged,
    table: str,
    key: Sequence[str],
    *,
    keep_old: bool = False,
    newest_by: str | None = None,
) -> Merged:
    """Put the batch into `table` (`schema.table`): a row whose key is there replaces it, or is left out (`keep_old`).

    A key twice in one batch is refused, since neither row is the right one, unless `newest_by` names the column whose
    highest value wins; with `keep_old` any of them may win.
    """
    types = _types(connection, table, (*batch.columns, *key, *([newest_by] if newest_by else [])))
    if not set(key) <= set(batch.columns) or not key:
        raise BadInput("the key is made of columns of the batch", where=", ".join(key) or "key")
    statement = _statement(batch, table, types, key, keep_old=keep_old, newest_by=newest_by)
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL work_mem = '{WORK_MEMORY}'".encode())
            row = connection.execute(statement, (list(batch.tries),)).fetchone()
    except psycopg.errors.CardinalityViolation:
        raise BadInput(
            "the batch holds a key twice",
            where=", ".join(key),
            hint="make keys unique, or name the column that says which row is the newest",
        ) from None
    except (psycopg.DataError, psycopg.IntegrityError) as wrong:
        raise refused(wrong) from None
    return Merged(*row) if row is not None else Merged(0, 0)


def drop_staging(connection: psycopg.Connection[Any], name: str) -> None:
    if not connection.closed:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier("staging", name)))


def sweep_staging(connection: psycopg.Connection[Any], age: timedelta) -> int:
    """Drop staging tables older than any write may take; how many."""
    names = [name for (name,) in connection.execute(statements("staging")["left"], {"age": age})]
    for name in names:
        drop_staging(connection, name)
    return len(names)


def make_staging(connection: psycopg.Connection[Any], columns: Mapping[str, Column]) -> str:
    """An empty staging table with these columns, and one for the try; its name within schema staging."""
    row = connection.execute(statements("staging")["now"]).fetchone()
    name = f"s_{row[0] if row else 0:010d}_{secrets.token_hex(8)}"
    kinds = [
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(_kind(column))) for column in columns.values()
    ]
    body = sql.SQL(", ").join([*kinds, sql.SQL("{} bigint").format(sql.Identifier(TRY))])
    connection.execute(sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(sql.Identifier("staging", name), body))
    return name


def _kind(column: Column) -> str:
    return "text" if pa.types.is_decimal(column.arrow) else column.postgres


def _types(connection: psycopg.Connection[Any], table: str, needed: Sequence[str]) -> dict[str, str]:
    name = _identifier(table).as_string(connection)
    types = dict(connection.execute(statements("staging")["columns"], {"table": name}).fetchall())
    missing = [column for column in needed if column not in types]
    if missing:
        what = "there is no such table" if not types else f"the table has no column {missing[0]}"
        raise BadInput(what, where=table)
    return types


def _statement(
    batch: Staged,
    table: str,
    types: Mapping[str, str],
    key: Sequence[str],
    *,
    keep_old: bool,
    newest_by: str | None,
) -> sql.Composed:
    # Types are as the catalogue writes them; from text, every one of them can be read.
    cast = [sql.SQL("{}::{}").format(sql.Identifier(name), sql.SQL(types[name])) for name in batch.columns]
    order = [sql.Identifier(name) for name in key]
    newest = [sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(newest_by))] if newest_by else []
    distinct = sql.SQL("DISTINCT ON ({})").format(_list(order)) if newest_by else sql.SQL("")
    others = [name for name in batch.columns if name not in key]
    action: sql.Composable = sql.SQL("NOTHING")
    if others and not keep_old:
        changes = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others]
        action = sql.SQL("UPDATE SET {}").format(_list(changes))
    return sql.SQL(
        "WITH done AS (INSERT INTO {table} ({names}) SELECT {distinct} {cast} FROM {staging}"
        " WHERE {attempt} = ANY(%s) ORDER BY {order} ON CONFLICT ({key}) DO {action} RETURNING xmax = 0 AS fresh)"
        " SELECT count(*) FILTER (WHERE fresh), count(*) FILTER (WHERE NOT fresh) FROM done"
    ).format(
        table=_identifier(table),
        names=_list([sql.Identifier(name) for name in batch.columns]),
        distinct=distinct,
        cast=_list(cast),
        staging=batch.identifier,
        attempt=sql.Identifier(TRY),
        order=_list([*order, *newest]),
        key=_list(order),
        action=action,
    )


def _identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split("."))


def _list(parts: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
