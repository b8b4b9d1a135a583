"""What the parts of a query bring with them: columns of which size, rows made of one, parts of the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from tracelake.domain.sql.functions import AGGREGATES
from tracelake.domain.sql.sizes import COLUMN, LISTED, SCALAR, Size

ANY: Final = " any"
STAR: Final = "*"
"""Columns of a table, which are not known by name."""
MANY: Final = 30
"""How many such a table may have."""


@dataclass
class RelationSize:
    """What a query, WITH or table may hold."""

    columns: dict[str, Size] | None = None
    """None: those of a granted table, of which nothing is known."""
    rows: float = 1.0
    """For one row of the tables that it reads."""
    tables: bool = True
    arms: float = 0.0
    joins: float = 0.0
    parts: float = 1.0
    inner: int = 0
    """How deep queries stand inside of expressions."""
    work: float = 0.0
    """Steps to make its rows of one."""
    held: float = 0.0
    """Bytes of the large values of a row, and of the rows that it is made of."""

    def column(self, name: str) -> Size | None:
        return COLUMN if self.columns is None else self.columns.get(name.casefold())

    @property
    def listed(self) -> float:
        return self.rows * (LISTED if self.tables else 1.0)


ScopeSizes = Mapping[str, RelationSize]


class AnyColumns(dict[str, Size]):
    """Columns of any name, all as large as one."""

    def __init__(self, size: Size) -> None:
        super().__init__({ANY: size})

    def get(self, key: str, default: object = None) -> Size:  # noqa: ARG002 - every name has it
        return self[ANY]


def column_size(node: exp.Column, scopes: list[ScopeSizes]) -> Size:
    """The largest of what the name may mean: of this query, or of one around it."""
    first, *rest = [part.name.casefold() for part in node.parts]
    named = [scope[first].column(rest[0]) for scope in scopes if rest and first in scope]
    plain = [item.column(first) for scope in scopes for item in scope.values()]
    known = [size for size in (*named, *plain) if size is not None]
    return widest(known) if known else COLUMN


def all_columns(sources: ScopeSizes) -> Size:
    """struct(*): every column that is known, and as many of a table as it may have."""
    size, count = SCALAR, 0.0
    items: list[Size] = []
    for source in sources.values():
        known = list((source.columns or {}).values())
        size += sum(item.bytes for item in known) if known else MANY * COLUMN.bytes
        count += len(known) or MANY
        items += known or [COLUMN]
    return Size(size, count, widest(items))


def widest(sizes: list[Size]) -> Size:
    found = sizes[0] if sizes else Size(SCALAR)
    for other in sizes[1:]:
        found = replace(found.at_least(other), weight=max(found.weight, other.weight))
    return found


def joined(arms: list[RelationSize]) -> RelationSize:
    return RelationSize(
        None,
        sum(arm.rows for arm in arms),
        any(arm.tables for arm in arms),
        sum(max(1.0, arm.arms) for arm in arms),
        sum(arm.joins for arm in arms),
        sum(arm.parts for arm in arms),
        held=sum(arm.held for arm in arms),
        inner=max(arm.inner for arm in arms),
    )


def multiplied(sources: Iterable[RelationSize], joins: float = 0.0) -> RelationSize:
    found = RelationSize(rows=1.0, tables=False, joins=joins)
    for source in sources:
        found.rows *= source.rows
        found.tables |= source.tables
        found.arms += source.arms
        found.joins += source.joins
        found.parts += source.parts
        found.held += source.held
        found.inner = max(found.inner, source.inner)
    return found


def starred(star: exp.Expr, sources: ScopeSizes) -> dict[str, Size]:
    asked = star.table.casefold() if isinstance(star, exp.Column) else ""
    found: dict[str, Size] = {}
    for name, source in sources.items():
        if not asked or name == asked:
            found.update(source.columns if source.columns is not None else {STAR: COLUMN})
    return found


def side_by_side(arms: list[dict[str, Size]]) -> dict[str, Size]:
    """By their places, if these are known."""
    first = arms[0]
    if any(len(arm) != len(first) or STAR in arm or ANY in arm for arm in arms):
        return AnyColumns(widest([size for arm in arms for size in arm.values()]))
    columns = zip(*(arm.values() for arm in arms), strict=True)
    return {name: widest(list(sizes)) for name, sizes in zip(first, columns, strict=True)}


def aggregates(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.this).casefold() in AGGREGATES


def groupings(group: exp.Expr) -> float:
    ways = 1.0
    elements = list(group.expressions)
    for kind in ("cube", "rollup", "grouping_sets"):
        given = group.args.get(kind)
        elements += given if isinstance(given, list) else []
    plain = [element for element in elements if not isinstance(element, exp.Cube | exp.Rollup | exp.GroupingSets)]
    for element in elements:
        inside = element.expressions or (plain if isinstance(element, exp.Cube | exp.Rollup) else [])
        ways *= _ways(element, len(inside))
    return ways


def _ways(element: exp.Expr, columns: int) -> float:
    if isinstance(element, exp.Cube):
        return 2.0 ** min(columns, 1_000)
    if isinstance(element, exp.Rollup):
        return columns + 1.0
    if isinstance(element, exp.GroupingSets):
        return sum(_ways(expression, len(expression.expressions)) for expression in element.expressions)
    return 1.0
