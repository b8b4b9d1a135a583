"""Merges staged batches into their table: rows, their origin and the note that they are applied, in one transaction.

Rows are written in key order. Of two batches with the same key the later one wins. A row that equals the stored one is
not written, so a repeated batch, of a retry for example, changes nothing for consumers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import sql

from tracelake.data.buffered.stage_batches import BATCH, TRY
from tracelake.data.buffered.tables import OURS, BufferedTable
from tracelake.data.buffered.types import form_of
from tracelake.data.postgres.copy_rows import refused
from tracelake.data.postgres.staging import WORK_MEMORY
from tracelake.data.statements import statements
from tracelake.domain.buffered import Column
from tracelake.runtime.crash_points import crash_point

MANY_ROWS: Final = 1_000
"""From this size it pays to check whether all rows are new; below, the number of statements matters."""
SOME_ROWS: Final = 100


@dataclass(frozen=True)
class Waiting:
    """A staged batch and its origin."""

    publish_id: UUID
    task_id: UUID
    attempt: int
    number: int
    tried: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Applied:
    publish_id: UUID
    seq: int
    rows: int
    bytes: int


def applied(connection: psycopg.Connection[Any], publishes: Sequence[UUID]) -> dict[UUID, Applied]:
    """Return the batches that are in their table already."""
    rows = connection.execute(statements("buffered")["applied"], {"ids": list(publishes)}).fetchall()
    return {row[0]: Applied(*row) for row in rows}


def merge_batches(
    connection: psycopg.Connection[Any], table: BufferedTable, staging: str, batches: Sequence[Waiting]
) -> list[Applied]:
    """Merge all batches or none; return what each counts as. BadInput if Postgres refuses a value.

    A batch that another sink has applied meanwhile is left out, and reported as that sink applied it.
    """
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL work_mem = '{WORK_MEMORY}'".encode())
            connection.execute(statements("buffered")["lock_table"], {"version": table.dataset_version})
            seqs = _note(connection, table, batches)
            ours = [batch for batch in batches if batch.publish_id in seqs]
            for statement in _statements_of(ours):
                _write(connection, table, staging, _values(table, statement, seqs))
            crash_point("merge_batches.before_commit")
    except (psycopg.DataError, psycopg.IntegrityError) as wrong:
        raise refused(wrong) from None
    crash_point("merge_batches.after_commit")
    done = {path.publish_id: Applied(path.publish_id, seqs[path.publish_id], path.rows, path.bytes) for path in ours}
    others = [batch.publish_id for batch in batches if batch.publish_id not in done]
    return list({**(applied(connection, others) if others else {}), **done}.values())


def _statements_of(batches: Sequence[Waiting]) -> list[list[Waiting]]:
    """Merge small batches together and large ones one by one: each is sorted, all of them together are not."""
    filled = [batch for batch in batches if batch.rows]
    if sum(batch.rows for batch in filled) >= MANY_ROWS * len(filled):
        return [[batch] for batch in filled]
    return [filled]


def _note(connection: psycopg.Connection[Any], table: BufferedTable, batches: Sequence[Waiting]) -> dict[UUID, int]:
    rows = connection.execute(
        statements("buffered")["apply"],
        {
            "version": table.dataset_version,
            "ids": [batch.publish_id for batch in batches],
            "rows": [batch.rows for batch in batches],
            "bytes": [batch.bytes for batch in batches],
        },
    ).fetchall()
    return dict(rows)


def _values(table: BufferedTable, batches: Sequence[Waiting], seqs: Mapping[UUID, int]) -> dict[str, Any]:
    return {
        "org": table.org_id,
        "numbers": [batch.number for batch in batches],
        "tries": [batch.tried for batch in batches],
        "tasks": [batch.task_id for batch in batches],
        "attempts": [batch.attempt for batch in batches],
        "publishes": [batch.publish_id for batch in batches],
        "seqs": [seqs[batch.publish_id] for batch in batches],
        "rows": sum(batch.rows for batch in batches),
    }


def _write(connection: psycopg.Connection[Any], table: BufferedTable, staging: str, values: Mapping[str, Any]) -> None:
    """Insert rows whose keys the table does not have without a conflict check, at half the cost.

    Nobody else writes while the table is locked: if a key exists after all, the insert is rolled back, and the batch is
    merged with the check.
    """
    one_batch = len(values["numbers"]) == 1
    if values["rows"] >= MANY_ROWS and not _is_known(connection, table, staging, values):
        with suppress(psycopg.errors.UniqueViolation), connection.transaction():
            connection.execute(_rows(table, staging, OF_ONE if one_batch else OF_SEVERAL), values)
            return
    rows = _rows(table, staging, OF_ONE_APART if one_batch else OF_SEVERAL)
    connection.execute(sql.SQL("{} {}").format(rows, _on_conflict(table)), values)


def _is_known(
    connection: psycopg.Connection[Any], table: BufferedTable, staging: str, values: Mapping[str, Any]
) -> bool:
    """Whether the table has the keys of some rows: of a repeated batch it has them all."""
    declared = table.declaration
    kinds = {column.name: column for column in declared.columns}
    same = [sql.SQL("t.{} = {}").format(sql.Identifier(name), _given(kinds[name])) for name in declared.unique_key]
    query = sql.SQL(
        "SELECT EXISTS (SELECT FROM (SELECT * FROM {staging} WHERE {batch} = ANY (%(numbers)s) LIMIT {some}) s,"
        " LATERAL (SELECT FROM {table} t WHERE t.org_id = %(org)s AND {same} LIMIT 1) known)"
    ).format(
        staging=sql.Identifier("staging", staging),
        batch=sql.Identifier(BATCH),
        some=sql.Literal(SOME_ROWS),
        table=table.identifier,
        same=sql.SQL(" AND ").join(same),
    )
    row = connection.execute(query, values).fetchone()
    return bool(row and row[0])


def _rows(table: BufferedTable, staging: str, chosen: str) -> sql.Composed:
    """Select in key order, the newest of one key first."""
    declared = table.declaration
    kinds = {column.name: column for column in declared.columns}
    key = [_given(kinds[name]) for name in declared.unique_key]
    return sql.SQL("INSERT INTO {table} AS t ({ours}, {names}) SELECT {chosen}").format(
        table=table.identifier,
        ours=_list([sql.Identifier(name) for name in OURS]),
        names=_list([sql.Identifier(name) for name in declared.names]),
        chosen=sql.SQL(chosen).format(
            key=_list(key),
            given=_list([_given(column) for column in declared.columns]),
            staging=sql.Identifier("staging", staging),
            batch=sql.Identifier(BATCH),
            attempt=sql.Identifier(TRY),
        ),
    )


OF_ONE: Final = (
    "%(org)s::uuid, (%(tasks)s::uuid[])[1], (%(attempts)s::int[])[1], (%(publishes)s::uuid[])[1],"
    " (%(seqs)s::bigint[])[1], now(), {given} FROM {staging} s"
    " WHERE s.{batch} = (%(numbers)s::int[])[1] AND s.{attempt} = (%(tries)s::bigint[])[1] ORDER BY {key}"
)
OF_ONE_APART: Final = "DISTINCT ON ({key}) " + OF_ONE
"""The check compares transferred keys: to Postgres 1.0 and 1.00 may be the same."""
OF_SEVERAL: Final = (
    "DISTINCT ON ({key}) %(org)s::uuid, b.task_id, b.attempt, b.publish_id, b.seq, now(), {given} FROM {staging} s"
    " JOIN unnest(%(numbers)s::int[], %(tries)s::bigint[], %(tasks)s::uuid[], %(attempts)s::int[],"
    " %(publishes)s::uuid[], %(seqs)s::bigint[]) AS b (number, tried, task_id, attempt, publish_id, seq)"
    " ON b.number = s.{batch} AND b.tried = s.{attempt} ORDER BY {key}, b.seq DESC"
)


def _on_conflict(table: BufferedTable) -> sql.Composed:
    declared = table.declaration
    others = [name for name in declared.names if name not in declared.unique_key]
    return sql.SQL("ON CONFLICT (org_id, {key}) DO {action}").format(
        key=_list([sql.Identifier(name) for name in declared.unique_key]), action=_action(others)
    )


def _given(column: Column) -> sql.Composable:
    """Return the expression in the table's type: Postgres parses values that were transferred as text."""
    form, name = form_of(column.type), sql.Identifier(column.name)
    if form.staged_as == form.postgres:
        return sql.SQL("s.{}").format(name)
    return sql.SQL("s.{}::{}").format(name, sql.SQL(form.postgres))


def _action(others: Sequence[str]) -> sql.Composable:
    if not others:
        return sql.SQL("NOTHING")
    changed = [name for name in (*OURS, *others) if name != "org_id"]
    return sql.SQL("UPDATE SET {} WHERE ({}) IS DISTINCT FROM ({})").format(
        _list([sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in changed]),
        _list([sql.SQL("t.{}").format(sql.Identifier(name)) for name in others]),
        _list([sql.SQL("excluded.{}").format(sql.Identifier(name)) for name in others]),
    )


def _list(parts: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
