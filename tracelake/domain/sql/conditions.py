"""Which whole numbers of a column a condition of a query can be true for.

Only what is certain counts: comparisons of the column with whole numbers. Whatever else a condition says narrows
nothing. A row without a number (NULL) passes none of these comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sqlglot import exp

from tracelake.domain.filter.tree import FLIPPED, Op
from tracelake.domain.sql.number_spans import ALL, Spans, compared_with, shared, united

Compared = Callable[[exp.Expr], bool]
"""Whether a node is the column that is looked for."""
OPERATORS: Final[Mapping[type[exp.Expr], Op]] = {
    exp.EQ: Op.EQ,
    exp.NullSafeEQ: Op.EQ,
    exp.LT: Op.LT,
    exp.LTE: Op.LE,
    exp.GT: Op.GT,
    exp.GTE: Op.GE,
}


def true_for(condition: exp.Expr | None, is_column: Compared) -> Spans:
    """The numbers for which it can be true, and more where that is not certain."""
    if isinstance(condition, exp.Paren):
        return true_for(condition.this, is_column)
    if isinstance(condition, exp.And):
        return shared(true_for(part, is_column) for part in condition.flatten())
    if isinstance(condition, exp.Or):
        return united(span for part in condition.flatten() for span in true_for(part, is_column))
    if isinstance(condition, exp.Between):
        return _between(condition, is_column)
    if isinstance(condition, exp.In):
        return _in(condition, is_column)
    return _compared(condition, is_column) if isinstance(condition, exp.Binary) else ALL


def _between(condition: exp.Between, is_column: Compared) -> Spans:
    low, high = _number(condition.args["low"]), _number(condition.args["high"])
    if not is_column(condition.this) or low is None or high is None or condition.args.get("symmetric"):
        return ALL
    return ((low, high),) if low <= high else ()


def _in(condition: exp.In, is_column: Compared) -> Spans:
    given = [_number(value) for value in condition.expressions]
    numbers = [number for number in given if number is not None]
    more = any(value for name, value in condition.args.items() if name not in ("this", "expressions"))
    if not is_column(condition.this) or not numbers or len(numbers) < len(given) or more:
        return ALL
    return united((number, number) for number in numbers)


def _compared(condition: exp.Binary, is_column: Compared) -> Spans:
    left, right, op = condition.left, condition.right, OPERATORS.get(type(condition))
    if op is not None and is_column(right):
        left, right, op = right, left, FLIPPED[op]
    number = _number(right)
    return ALL if number is None or op is None or not is_column(left) else compared_with(op, number)


def _number(node: exp.Expr) -> int | None:
    if isinstance(node, exp.Paren):
        return _number(node.this)
    if isinstance(node, exp.Neg):
        inside = _number(node.this)
        return None if inside is None else -inside
    if isinstance(node, exp.Literal) and not node.is_string and node.this.isdecimal():
        return int(node.this)
    return None
