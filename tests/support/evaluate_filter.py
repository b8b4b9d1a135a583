"""Evaluates a filter on one row, in SQL's three-valued logic: the reference for everything that applies filters."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, assert_never

from tracelake.domain.filter.tree import (
    AllOf,
    AnyOf,
    ColumnRef,
    Comparison,
    Filter,
    In,
    InvalidFilter,
    IsNull,
    Not,
    Op,
)

_COMPARE: Mapping[Op, Callable[[Any, Any], bool]] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}


def holds(tree: Filter, row: Mapping[str, Any]) -> bool | None:
    """True, False, or None for unknown; a row is read only where it is True."""
    match tree:
        case Comparison(column, op, right):
            value = _cell(row, right.name) if isinstance(right, ColumnRef) else right.value
            return _compare(op, _cell(row, column), value)
        case In(column, values):
            return _any(_compare(Op.EQ, _cell(row, column), value.value) for value in values)
        case IsNull(column):
            return _cell(row, column) is None
        case Not(part):
            return _opposite(holds(part, row))
        case AllOf(parts):
            return _opposite(_any(_opposite(holds(part, row)) for part in parts))
        case AnyOf(parts):
            return _any(holds(part, row) for part in parts)
        case _:
            assert_never(tree)


def _cell(row: Mapping[str, Any], column: str) -> Any:
    if column not in row:
        raise InvalidFilter(f"the row has no column {column!r}", key=column)
    return row[column]


def _compare(op: Op, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if _family(left) is not _family(right):
        raise InvalidFilter(f"a {type(left).__name__} cannot be compared with a {type(right).__name__}")
    return _COMPARE[op](left, right)


def _family(value: Any) -> type:
    """Engines cast between type families differently, so a filter that needs a cast is ambiguous."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return Decimal
    return type(value)


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    found = list(verdicts)
    if True in found:
        return True
    return None if None in found else False


def _opposite(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict
