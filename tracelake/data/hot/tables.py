"""Hot tables: one table in schema `hot` for one generation of one dataset, made when it is first needed.

The table is named by the generation's id and stands in the register (`trace_meta.dataset_tables`). Several workers may
ask for the same one at once. Its columns can only become more: what a reader asked for yesterday is there tomorrow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
from psycopg import sql

from tracelake.data.postgres.column_types import check_names, postgres_type
from tracelake.data.statements import statements
from tracelake.errors import BadInput, Conflict


@dataclass(frozen=True)
class HotTable:
    """What a hot table is to hold; `number_column` is None for one that is not written block by block."""

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
        """Within schema hot; also what readers are given."""
        return f"d_{self.dataset_version.hex}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier("hot", self.name)


def ensure(connection: psycopg.Connection[Any], table: HotTable) -> None:
    """Make the table, or add the columns that it lacks; refuse any other difference. In a transaction of its own."""
    with connection.transaction():
        there = connection.execute(statements("hot")["registered"], _id(table)).fetchone()
        if there is None or json.loads(there[3]) != described(table):
            connection.execute(statements("hot")["lock_name"], _id(table))
            there = connection.execute(statements("hot")["registered"], _id(table)).fetchone()
        if there is None:
            _make(connection, table)
        else:
            _widen(connection, table, there)


def drop(connection: psycopg.Connection[Any], table: HotTable) -> None:
    """Remove the table, its blocks and its entry. Harmless when there is none."""
    with connection.transaction():
        connection.execute(statements("hot")["lock_name"], _id(table))
        connection.execute(statements("hot")["lock_tables"], {"versions": [table.dataset_version]})
        connection.execute(statements("hot")["unregister"], _id(table))
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.identifier))


def described(table: HotTable) -> list[dict[str, Any]]:
    """The columns as the register keeps them."""
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


def _widen(connection: psycopg.Connection[Any], table: HotTable, there: tuple[Any, ...]) -> None:
    dataset, org, _, columns, unique_key, number_column = there
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
