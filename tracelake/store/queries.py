"""Named SQL, and typed rows of its results.

Every statement is in `sql/*.sql` under `-- name: x`, with a sentence that says what it does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import msgspec

FOLDER = Path(__file__).parent / "sql"
NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)

Connection = asyncpg.pool.PoolConnectionProxy
Queryable = asyncpg.Pool | Connection


class Row(msgspec.Struct, frozen=True):
    """A row of a result: its fields are the statement's columns, in their order."""


R = TypeVar("R", bound=Row)


@cache
def queries(file: str) -> Mapping[str, str]:
    """The statements of `sql/<file>.sql` by name."""
    _, *split = NAME.split((FOLDER / f"{file}.sql").read_text(encoding="utf-8"))
    statements = {name: statement.strip() for name, statement in zip(split[::2], split[1::2], strict=True)}
    _names.update({statement: f"{file}.{name}" for name, statement in statements.items()})
    return statements


def name_of(statement: str) -> str | None:
    """The name of a statement that was read here."""
    return _names.get(statement)


async def fetch_rows(database: Queryable, statement: str, row: type[R], *arguments: object) -> list[R]:
    return _typed(statement, row, await database.fetch(statement, *arguments))


async def find_row(database: Queryable, statement: str, row: type[R], *arguments: object) -> R | None:
    """The only row, or None."""
    found = await database.fetchrow(statement, *arguments)
    return None if found is None else _typed(statement, row, [found])[0]


async def fetch_row(database: Queryable, statement: str, row: type[R], *arguments: object) -> R:
    """The row of a statement that always returns one."""
    found = await find_row(database, statement, row, *arguments)
    if found is None:
        raise LookupError(f"{name_of(statement)} returned no row")
    return found


async def fetch_column(database: Queryable, statement: str, *arguments: object) -> list[Any]:
    """The first column of each row."""
    return [record[0] for record in await database.fetch(statement, *arguments)]


def _typed(statement: str, row: type[R], records: Sequence[asyncpg.Record]) -> list[R]:
    if records and (statement, row) not in _checked:
        _check_columns(statement, row, tuple(records[0].keys()))
    return [row(*record) for record in records]


def _check_columns(statement: str, row: type[Row], columns: tuple[str, ...]) -> None:
    """Once per statement: columns and fields are matched by position."""
    if columns != row.__struct_fields__:
        raise TypeError(f"{name_of(statement)} returns {columns}; {row.__name__} has {row.__struct_fields__}")
    _checked.add((statement, row))


_names: dict[str, str] = {}
_checked: set[tuple[str, type[Row]]] = set()
