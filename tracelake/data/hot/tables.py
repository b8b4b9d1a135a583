"""Hot tables: one table in schema `hot` per generation of a dataset, created when it is first needed.

The table is named by the generation's id and registered in `trace_meta.dataset_tables`. Several workers may create the
same one at once. Columns can only be added: readers rely on them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg
import pyarrow as pa
from psycopg import sql

from tracelake.data.postgres.column_types import PLAIN, check_names, postgres_type, wide
from tracelake.data.statements import statements
from tracelake.errors import BadInput, Conflict

NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")
WIDEST: Final = 38
_PLAIN: Final = {postgres: arrow for arrow, postgres in reversed(PLAIN.items())}


@dataclass(frozen=True)
class HotTable:
    """The definition of a hot table; `number_column` is None for one that is not written block by block."""

    dataset_uuid: UUID
    dataset_version: UUID
    org_id: UUID
    schema: pa.Schema
    unique_key: tuple[str, ...]
    number_column: str | None = "block_number"

    def __post_init__(self) -> None:
        _check(self)

    @property
    def name(self) -> str:
        """The name within schema hot; readers get it too."""
        return f"d_{self.dataset_version.hex}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier("hot", self.name)


def ensure(connection: psycopg.Connection[Any], table: HotTable) -> None:
    """Create the table, or add the columns that it lacks; refuse any other difference. Runs in its own transaction."""
    with connection.transaction():
        entry = connection.execute(statements("hot")["registered"], _id(table)).fetchone()
        if entry is None or json.loads(entry[3]) != described(table):
            connection.execute(statements("hot")["lock_name"], _id(table))
            entry = connection.execute(statements("hot")["registered"], _id(table)).fetchone()
        if entry is None:
            _make(connection, table)
        else:
            _widen(connection, table, entry)


def registered(connection: psycopg.Connection[Any], org: UUID, version: UUID) -> HotTable | None:
    """Return the generation's table, if there is one and it belongs to the organisation."""
    row = connection.execute(statements("hot")["registered"], {"version": version}).fetchone()
    if row is None or row[1] != org:
        return None
    dataset, _, _, columns, unique_key, number_column = row
    schema = pa.schema([_field(column) for column in json.loads(columns)])
    return HotTable(dataset, version, org, schema, tuple(unique_key), number_column)


def drop(connection: psycopg.Connection[Any], table: HotTable) -> None:
    """Drop the table with its blocks and its entry. Harmless when there is none."""
    with connection.transaction():
        connection.execute(statements("hot")["lock_name"], _id(table))
        connection.execute(statements("hot")["lock_tables"], {"versions": [table.dataset_version]})
        connection.execute(statements("hot")["unregister"], _id(table))
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.identifier))


def described(table: HotTable) -> list[dict[str, Any]]:
    """Return the columns as JSON for the list of hot tables."""
    return [
        {"name": field.name, "type": postgres_type(field), "nullable": _nullable(table, field)}
        for field in table.schema
    ]


def _id(table: HotTable) -> dict[str, Any]:
    return {"version": table.dataset_version}


def _nullable(table: HotTable, field: pa.Field) -> bool:
    return bool(field.nullable) and field.name not in (*table.unique_key, table.number_column)


def _make(connection: psycopg.Connection[Any], table: HotTable) -> None:
    columns = [_column(column) for column in described(table)]
    key = sql.SQL("UNIQUE ({})").format(_names(table.unique_key))
    body = sql.SQL(", ").join([*columns, key])
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(table.identifier, body))
    if table.number_column is not None and table.unique_key[0] != table.number_column:
        number = _names((table.number_column,))
        connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(table.identifier, number))
    values = {
        **_id(table),
        "dataset": table.dataset_uuid,
        "org": table.org_id,
        "table_name": table.name,
        "columns": json.dumps(described(table)),
        "unique_key": list(table.unique_key),
        "number_column": table.number_column,
    }
    connection.execute(statements("hot")["register"], values)


def _widen(connection: psycopg.Connection[Any], table: HotTable, entry: tuple[Any, ...]) -> None:
    dataset, org, _, columns, unique_key, number_column = entry
    had, wanted = json.loads(columns), described(table)
    if (dataset, org, tuple(unique_key), number_column) != (
        table.dataset_uuid,
        table.org_id,
        table.unique_key,
        table.number_column,
    ):
        raise _conflict(table, "belongs to another dataset or organisation, or has another key")
    by_name = {column["name"]: column for column in had}
    changed = [column["name"] for column in wanted if by_name.get(column["name"], column) != column]
    added = [column for column in wanted if column["name"] not in by_name]
    names = set(table.schema.names)
    left_out = [column["name"] for column in had if column["name"] not in names and not column["nullable"]]
    required = [column["name"] for column in added if not column["nullable"]] + left_out
    if changed or required:
        raise _conflict(table, f"cannot change {', '.join(changed or required)} in place")
    if added:
        extra = sql.SQL(", ").join(sql.SQL("ADD COLUMN {}").format(_column(column)) for column in added)
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(table.identifier, extra))
        connection.execute(statements("hot")["widen"], {**_id(table), "columns": json.dumps([*had, *added])})


def _conflict(table: HotTable, what: str) -> Conflict:
    return Conflict(
        f"the hot table of this generation {what}",
        where=table.name,
        hint="columns that may be empty can be added; any other change needs a new generation of the dataset",
    )


def _column(column: dict[str, Any]) -> sql.Composed:
    # The type is one of ours (`postgres_type`), never a user's text.
    null = sql.SQL("") if column["nullable"] else sql.SQL(" NOT NULL")
    return sql.SQL("{} {}{}").format(sql.Identifier(column["name"]), sql.SQL(column["type"]), null)


def _names(names: tuple[str, ...]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _check(table: HotTable) -> None:
    check_names(table.schema)
    described(table)
    named = [*table.unique_key, *([table.number_column] if table.number_column is not None else [])]
    missing = [name for name in named if name not in table.schema.names]
    if missing or not table.unique_key or len(set(table.unique_key)) != len(table.unique_key):
        raise BadInput(
            "a hot table's unique key and number column are columns of it",
            where=", ".join(missing) or "unique_key",
        )
    if table.number_column is not None and table.schema.field(table.number_column).type != pa.int64():
        raise BadInput("block numbers are 64-bit whole numbers", where=table.number_column)


def _field(column: dict[str, Any]) -> pa.Field:
    name, kind = column["name"], column["type"]
    if kind in _PLAIN:
        return pa.field(name, _PLAIN[kind])
    numeric = NUMERIC.fullmatch(kind)
    if numeric is not None and int(numeric[1]) <= WIDEST:
        return pa.field(name, pa.decimal128(int(numeric[1]), int(numeric[2])))
    if numeric is not None or kind == "jsonb":
        return wide(name, kind)
    raise BadInput("this table has a column of an unknown type", where=name)
