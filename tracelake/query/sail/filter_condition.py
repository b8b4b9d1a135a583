"""Turns a filter of a DAG into a condition for Sail, where that is known to pass the rows that it passes on Spark.

A number is converted to the type of its column, as `data/compare_number.py` does for Spark. What Spark would convert
first (a text compared with a date), and types that Sail orders differently (doubles), are left to Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import Final, assert_never

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
from tracelake.query.engine import CannotRun
from tracelake.query.sail import plans
from tracelake.query.sail.plans import Condition
from tracelake.query.sail.translate.types import family

CALLS: Final = {Op.EQ: "==", Op.NE: "!=", Op.LT: "<", Op.LE: "<=", Op.GT: ">", Op.GE: ">="}
INTEGERS: Final = {"tinyint": ("byte", 8), "smallint": ("short", 16), "int": ("integer", 32), "bigint": ("long", 64)}
"""By Spark's types: the name of a value in the protocol, and its bits."""


def passing(filters: Sequence[Filter], types: Mapping[str, str]) -> Condition:
    """Return the condition that a row passes any of the filters. `types`: Spark's, by column."""
    folded = {name.casefold(): type_ for name, type_ in types.items()}
    return _condition(AnyOf(tuple(filters)), folded)


def _condition(tree: Filter, types: Mapping[str, str]) -> Condition:
    match tree:
        case Comparison() | In() | IsNull():
            return _of_column(tree, types)
        case Not(part):
            return plans.call("not", _condition(part, types))
        case AllOf(parts):
            return plans.joined("and", [_condition(part, types) for part in parts])
        case AnyOf(parts):
            return plans.joined("or", [_condition(part, types) for part in parts])
        case _:
            assert_never(tree)


def _of_column(tree: Comparison | In | IsNull, types: Mapping[str, str]) -> Condition:
    match tree:
        case Comparison(name, op, ColumnRef(other)):
            return _compared_columns(name, op, other, types)
        case Comparison(name, op, right):
            return _compared(name, op, right, types)
        case In(name, values):
            return plans.joined("or", [_compared(name, Op.EQ, value, types) for value in values])
        case IsNull(name):
            _type(name, types)
            return plans.call("isNull", plans.column(name))
        case _:
            assert_never(tree)


def _compared_columns(name: str, op: Op, other: str, types: Mapping[str, str]) -> Condition:
    type_ = _type(name, types)
    if type_ != _type(other, types) or family(type_) in {"double", "other"}:
        raise CannotRun("filter")
    return plans.call(CALLS[op], plans.column(name), plans.column(other))


def _compared(name: str, op: Op, right: Literal | ColumnRef, types: Mapping[str, str]) -> Condition:
    match right, _type(name, types):
        case (Whole(number) | Exact(number), type_):
            return _compared_with_number(name, op, Fraction(number), _steps(type_))
        case (Text(text), "string"):
            return plans.call(CALLS[op], plans.column(name), plans.literal(string=text))
        case (Truth(truth), "boolean"):
            return plans.call(CALLS[op], plans.column(name), plans.literal(boolean=truth))
        case _:
            raise CannotRun("filter")


@dataclass(frozen=True)
class _Steps:
    """The values of an exact type, counted in its smallest step."""

    least: int
    most: int
    scale: int = 0
    precision: int = 0
    integer: str = ""

    def literal(self, step: int) -> Condition:
        if self.integer:
            return plans.literal(**{self.integer: step})
        digits = tuple(map(int, str(abs(step))))
        return plans.decimal(Decimal((int(step < 0), digits, -self.scale)), self.precision, self.scale)


def _steps(type_: str) -> _Steps:
    if type_ in INTEGERS:
        name, bits = INTEGERS[type_]
        return _Steps(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, integer=name)
    kind, _, inside = type_.partition("(")
    if kind != "decimal":
        raise CannotRun("filter")
    precision, scale = map(int, inside.rstrip(")").split(","))
    return _Steps(-(10**precision) + 1, 10**precision - 1, scale, precision)


def _compared_with_number(name: str, op: Op, number: Fraction, steps: _Steps) -> Condition:
    exact = number * 10**steps.scale
    below, above = floor(exact), ceil(exact)
    column = plans.column(name)
    if below == above and steps.least <= below <= steps.most:
        return plans.call(CALLS[op], column, steps.literal(below))
    # No value of the column equals this number: it is between two values, or out of range.
    match op:
        case Op.EQ | Op.NE:
            return _always(name, op is Op.NE)
        case Op.LT | Op.LE:
            within = steps.least <= below <= steps.most
            return plans.call("<=", column, steps.literal(below)) if within else _always(name, below > steps.most)
        case Op.GT | Op.GE:
            within = steps.least <= above <= steps.most
            return plans.call(">=", column, steps.literal(above)) if within else _always(name, above < steps.least)
        case _:
            assert_never(op)


def _always(name: str, truth: bool) -> Condition:
    """The same result for every value, but NULL for NULL: `x = x`, or not."""
    same = plans.call("==", plans.column(name), plans.column(name))
    return same if truth else plans.call("not", same)


def _type(name: str, types: Mapping[str, str]) -> str:
    if name.casefold() not in types:
        raise CannotRun("filter")
    return types[name.casefold()]
