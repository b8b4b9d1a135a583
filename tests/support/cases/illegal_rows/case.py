"""What a case of an illegal row is, and of an illegal change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.cases.illegal_rows.rows import Row


@dataclass(frozen=True)
class Case:
    rule: str
    constraint: str
    table: str
    broken: Row
    """What makes the legal row illegal."""
    legal: Row = field(default_factory=dict)
    """What makes the legal row of the table the legal one of this case."""
    beside: tuple[str, Row] | None = None
    """A row that is there already."""


def of(table: str, *rules: tuple[Any, ...]) -> list[Case]:
    """Cases of one table: rule, constraint (without the table's name), illegal row, legal row, rows beside it."""
    return [
        Case(rule, name if name.startswith("idx_") else f"{table}_{name}", table, *given)
        for rule, name, *given in rules
    ]


@dataclass(frozen=True)
class Change:
    """A rule about changes of a row: one change is accepted, the other refused."""

    rule: str
    constraint: str
    table: str
    legal: Row
    illegal: Row
    row: Row
