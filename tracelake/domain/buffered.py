"""What a buffered dataset is declared to be, and what may become of the declaration: columns only become more.

A declaration is the contract between many writers and one table. The list of types is closed: each has one form in
JSON, one in Arrow and one in Postgres (`data/buffered/types.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

PLAIN_TYPES: Final = (
    "boolean",
    "integer",
    "bigint",
    "double",
    "text",
    "bytes",
    "date",
    "timestamp",
    "json",
    "uint256",
)
DECIMAL: Final = re.compile(r"decimal\(([1-9]|[12][0-9]|3[0-8]),([0-9]|[12][0-9]|3[0-8])\)")
COLUMN: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
RESERVED: Final = frozenset(
    {"org_id", "producer_task_id", "producer_attempt", "publish_id", "publish_seq", "updated_at"}
)
"""What the sink sets itself in every row: no producer gets to say it."""
NO_KEY: Final = frozenset({"json", "double"})
"""Types that cannot be in a key: values have two spellings, or two values print alike."""
MOST_COLUMNS: Final = 200
MOST_INDEXES: Final = 16


SPARK_TYPES: Final = {
    "boolean": "boolean",
    "integer": "int",
    "bigint": "bigint",
    "double": "double",
    "text": "string",
    "bytes": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "json": "string",
    "uint256": "string",
}
"""The type's name for readers."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Declaration:
    columns: tuple[Column, ...]
    """In the order of the file."""
    unique_key: tuple[str, ...]
    indexes: tuple[tuple[str, ...], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


@dataclass(frozen=True, slots=True)
class IncompatibleChange:
    """Why a declaration cannot replace the current one; `part` is the column at fault, or the field."""

    part: str
    reason: str
    suggestion: str


def is_type(name: str) -> bool:
    found = DECIMAL.fullmatch(name)
    return name in PLAIN_TYPES or (found is not None and int(found[2]) <= int(found[1]))


def incompatible_changes(declared: Declaration, wanted: Declaration) -> list[IncompatibleChange]:
    """Everything that keeps `wanted` from following `force`; empty: columns and indexes were added, or nothing."""
    had, found = {item.name: item for item in declared.columns}, list[IncompatibleChange]()
    missing = [name for name in had if name not in wanted.names]
    found += [IncompatibleChange(name, f"column {name!r} would be removed: its rows have it", KEEP) for name in missing]
    for column in wanted.columns:
        reason = _why_not(had.get(column.name), column)
        if reason is not None:
            found.append(IncompatibleChange(column.name, reason, OTHER_NAME))
    if wanted.unique_key != declared.unique_key:
        reason = f"the unique key would change from {_said(declared.unique_key)} to {_said(wanted.unique_key)}"
        found.append(IncompatibleChange("unique_key", reason, OTHER_NAME))
    return found


KEEP: Final = "keep it: a writer may leave it empty if it is nullable"
OTHER_NAME: Final = "declare a dataset of another name, and let the writers write there"


def widened(declared: Declaration | None, wanted: Declaration) -> Declaration:
    """Both together: the columns and indexes of the table after either."""
    if declared is None:
        return wanted
    added = tuple(column for column in wanted.columns if column.name not in declared.names)
    indexes = tuple(index for index in wanted.indexes if index not in declared.indexes)
    return Declaration(declared.columns + added, declared.unique_key, declared.indexes + indexes)


def to_json(declaration: Declaration) -> dict[str, Any]:
    return {
        "columns": [{"name": item.name, "type": item.type, "nullable": item.nullable} for item in declaration.columns],
        "unique_key": list(declaration.unique_key),
        "indexes": [list(index) for index in declaration.indexes],
    }


def from_json(document: Mapping[str, Any]) -> Declaration:
    columns: Sequence[Mapping[str, Any]] = document["columns"]
    return Declaration(
        tuple(Column(item["name"], item["type"], item["nullable"]) for item in columns),
        tuple(document["unique_key"]),
        tuple(tuple(index) for index in document["indexes"]),
    )


def _why_not(before: Column | None, after: Column) -> str | None:
    if before is None:
        return None if after.nullable else f"column {after.name!r} is new and not nullable: rows that are there lack it"
    if before.type != after.type:
        return f"column {after.name!r} would change from {before.type} to {after.type}"
    if before.nullable != after.nullable:
        change = "become not nullable" if before.nullable else "become nullable"
        return f"column {after.name!r} would {change}"
    return None


def _said(names: Sequence[str]) -> str:
    return f"({', '.join(names)})"
