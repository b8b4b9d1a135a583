"""A filter of the DAG as a condition on a DataFrame: built from the tree, value by value, never from text."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, assert_never

from trace_platform.domain.filters import AllOf, AnyOf, Column, Comparison, Filter, In, IsNull, Literal, Not, Op

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


def as_column(tree: Filter, frame: DataFrame) -> SparkColumn:
    match tree:
        case Comparison(column, op, right):
            left, other = frame[column], frame[right.name] if isinstance(right, Column) else _literal(right)
            return _compared(left, op, other)
        case In(column, values):
            return frame[column].isin([_literal(value) for value in values])
        case IsNull(column):
            return frame[column].isNull()
        case Not(part):
            return ~as_column(part, frame)
        case AllOf(parts):
            return reduce(lambda one, other: one & other, [as_column(part, frame) for part in parts])
        case AnyOf(parts):
            return reduce(lambda one, other: one | other, [as_column(part, frame) for part in parts])
        case _:
            assert_never(tree)


def _compared(left: SparkColumn, op: Op, right: SparkColumn) -> SparkColumn:
    match op:
        case Op.EQ:
            return left == right
        case Op.NE:
            return left != right
        case Op.LT:
            return left < right
        case Op.LE:
            return left <= right
        case Op.GT:
            return left > right
        case Op.GE:
            return left >= right
        case _:
            assert_never(op)


def _literal(value: Literal) -> SparkColumn:
    from pyspark.sql import functions

    plain: Any = value.value
    return functions.lit(plain)
