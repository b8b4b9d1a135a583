"""Tables of buffered datasets: one per dataset in schema `buffered`, created with its first message, widened in place.

Besides the declared columns every row has its organisation and origin: `org_id`, the producing task and attempt, the
publish and its sequence number. Several sinks may create the same table at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import sql

from tracelake.data.buffered.types import form_of
from tracelake.data.statements import statements
from tracelake.domain.buffered import Column, Declaration, from_json, incompatible_changes, to_json, widened
from tracelake.errors import Conflict

OURS: Final[Mapping[str, str]] = {
    "org_id": "uuid",
    "producer_task_id": "uuid",
    "producer_attempt": "integer",
    "publish_id": "uuid",
    "publish_seq": "bigint",
    "updated_at": "timestamp with time zone",
}
"""The columns that the sink sets in every row, with their types."""


@dataclass(frozen=True)
class BufferedTable:
    dataset_uuid: UUID
    dataset_version: UUID
    org_id: UUID
    declaration: Declaration

    @property
    def name(self) -> str:
        return f"b_{self.dataset_version.hex}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier("buffered", self.name)


def ensure(connection: psycopg.Connection[Any], table: BufferedTable) -> Declaration:
    """Create the table or add what it lacks, in a transaction; return its columns and indexes.

    A declaration older than the table's changes nothing: messages may be late.
    """
    version = {"version": table.dataset_version}
    known = connection.execute(statements("buffered")["declared"], {**version, "org": table.org_id}).fetchone()
    if known is not None and _lacks_nothing(has := from_json(json.loads(known[0])), table.declaration):
        return has  # without the lock, which a merge holds: the next batch is read meanwhile
    with connection.transaction():
        row = connection.execute(statements("buffered")["registered"], version).fetchone()
        if row is None:
            connection.execute(statements("buffered")["lock_name"], {"version": str(table.dataset_version)})
            row = connection.execute(statements("buffered")["registered"], version).fetchone()
        if row is None:
            _make(connection, table)
            return table.declaration
        return _widen(connection, table, from_json(json.loads(row[0])))


def _lacks_nothing(has: Declaration, wanted: Declaration) -> bool:
    return has.unique_key == wanted.unique_key and widened(has, wanted) == has


def _make(connection: psycopg.Connection[Any], table: BufferedTable) -> None:
    ours = [sql.SQL("{} {} NOT NULL").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in OURS.items()]
    declared = [_column(column) for column in table.declaration.columns]
    key = sql.SQL("PRIMARY KEY (org_id, {})").format(_names(table.declaration.unique_key))
    body = sql.SQL(", ").join([*ours, *declared, key])
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(table.identifier, body))
    # Every consumer reads the rows since some publish.
    connection.execute(sql.SQL("CREATE INDEX ON {} (publish_seq)").format(table.identifier))
    _index(connection, table, table.declaration.indexes)
    _register(connection, table, table.declaration)


def _widen(connection: psycopg.Connection[Any], table: BufferedTable, has: Declaration) -> Declaration:
    wanted = widened(has, table.declaration)
    changed = [change for change in incompatible_changes(has, wanted) if change.part in wanted.names]
    if changed or has.unique_key != table.declaration.unique_key:
        raise Conflict(
            f"table {table.name} cannot become what is declared: {'; '.join(refusal.reason for refusal in changed)}",
            where=table.name,
        )
    if wanted == has:
        return has
    added = [column for column in wanted.columns if column.name not in has.names]
    if added:
        extra = sql.SQL(", ").join(sql.SQL("ADD COLUMN {}").format(_column(column)) for column in added)
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(table.identifier, extra))
    _index(connection, table, [index for index in wanted.indexes if index not in has.indexes])
    _register(connection, table, wanted)
    return wanted


def _index(connection: psycopg.Connection[Any], table: BufferedTable, indexes: Sequence[Sequence[str]]) -> None:
    for index in indexes:
        connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(table.identifier, _names(index)))


def _register(connection: psycopg.Connection[Any], table: BufferedTable, declaration: Declaration) -> None:
    values = {
        "version": table.dataset_version,
        "dataset": table.dataset_uuid,
        "org": table.org_id,
        "table_name": table.name,
        "declaration": json.dumps(to_json(declaration)),
    }
    connection.execute(statements("buffered")["register"], values)


def _column(column: Column) -> sql.Composed:
    # The type is one of ours (`buffered/types.py`), never a user's text.
    null = sql.SQL("") if column.nullable else sql.SQL(" NOT NULL")
    return sql.SQL("{} {}{}").format(sql.Identifier(column.name), sql.SQL(form_of(column.type).postgres), null)


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
