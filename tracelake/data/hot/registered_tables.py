"""A hot table as the register knows it: for readers, who are told a generation and nothing about its columns."""

from __future__ import annotations

import json
import re
from typing import Any, Final
from uuid import UUID

import psycopg
import pyarrow as pa

from tracelake.data.hot.tables import HotTable
from tracelake.data.postgres.column_types import PLAIN, wide
from tracelake.data.statements import statements
from tracelake.errors import BadInput

NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")
WIDEST: Final = 38
_PLAIN: Final = {postgres: arrow for arrow, postgres in reversed(PLAIN.items())}


def registered(connection: psycopg.Connection[Any], org: UUID, version: UUID) -> HotTable | None:
    """The generation's table, if there is one and it is the organisation's."""
    row = connection.execute(statements("hot")["registered"], {"version": version}).fetchone()
    if row is None or row[1] != org:
        return None
    dataset, _, _, columns, unique_key, number_column = row
    schema = pa.schema([_field(column) for column in json.loads(columns)])
    return HotTable(dataset, version, org, schema, tuple(unique_key), number_column)


def _field(column: dict[str, Any]) -> pa.Field:
    name, kind = column["name"], column["type"]
    if kind in _PLAIN:
        return pa.field(name, _PLAIN[kind])
    numeric = NUMERIC.fullmatch(kind)
    if numeric is not None and int(numeric[1]) <= WIDEST:
        return pa.field(name, pa.decimal128(int(numeric[1]), int(numeric[2])))
    if numeric is not None or kind == "jsonb":
        return wide(name, kind)
    raise BadInput("this table has a column of a type that is not known", where=name)
