"""Turns a filter of a DAG into a condition on a DataFrame: built from its tree, never from text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, assert_never

from tracelake.data.compare_number import compared, compared_with, equals_one_of
from tracelake.domain.filter.tree import (
    AllOf,
    AnyOf,
    ColumnRef,
    Comparison,
    Exact,
    Filter,
    In,
    IsNull,
    Literal,
    Not,
    Op,
    Text,
    Truth,
    Whole,
)

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


def as_column(tree: Filter, frame: DataFrame) -> SparkColumn:
    match tree:
        case Comparison(column, op, right):
            return _compared(frame, column, op, right)
        case In(column, values):
            return _one_of(frame, column, values)
        case IsNull(column):
            return frame[column].isNull()
        case Not(part):
            return ~as_column(part, frame)
        case AllOf(parts):
            return reduce(lambda left, right: left & right, [as_column(part, frame) for part in parts])
        case AnyOf(parts):
            return reduce(lambda left, right: left | right, [as_column(part, frame) for part in parts])
        case _:
            assert_never(tree)


def _compared(frame: DataFrame, column: str, op: Op, right: Literal | ColumnRef) -> SparkColumn:
    match right:
        case Whole(number) | Exact(number):
            return compared_with(frame, column, op, number)
        case ColumnRef(other):
            return compared(frame[column], op, frame[other])
        case _:
            return compared(frame[column], op, _literal(right))


def _one_of(frame: DataFrame, column: str, values: Sequence[Literal]) -> SparkColumn:
    numbers = [value.value for value in values if isinstance(value, Whole | Exact)]
    others = [_literal(value) for value in values if not isinstance(value, Whole | Exact)]
    conditions = [equals_one_of(frame, column, numbers)] if numbers else []
    conditions += [frame[column].isin(others)] if others else []
    return reduce(lambda left, right: left | right, conditions)


def _literal(value: Text | Truth) -> SparkColumn:
    from pyspark.sql import functions

    plain: Any = value.value
    return functions.lit(plain)
