"""Arithmetic and conversions for Sail: the expression that gives Spark's value, and the type that Spark's has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlglot import exp

from tracelake.domain.sql.decimals import DecimalType, literal_type, result_type
from tracelake.query.sail.translate.rewrites import (
    as_double,
    call,
    cast,
    checked_decimal,
    checked_whole,
    from_micros,
    in_four_digits,
    kept,
    micros,
    plain_whole,
    quotient,
    signed,
    whole_units,
)
from tracelake.query.sail.translate.types import NotOnSail, as_decimal, decimal, family, wider

Typed = tuple[Any, str]
"""An expression and its type."""
OPERATORS: Final[Mapping[type[Any], str]] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
ARITHMETIC: Final = (*OPERATORS, exp.IntDiv, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
UNITS: Final = {
    "second": 10**6,
    "minute": 60 * 10**6,
    "hour": 3600 * 10**6,
    "day": 86400 * 10**6,
    "week": 604800 * 10**6,
}
DAY: Final = 86400 * 10**6
NUMBERS: Final = {"whole", "decimal", "double"}
TIMES: Final = {
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "timestamp": re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d)?"),
}
CONVERSIONS: Final = {
    *(("whole", to) for to in ("whole", "decimal", "bool", "text")),
    *(("decimal", to) for to in ("whole", "decimal", "text")),
    *(("bool", "whole"), ("bool", "text"), ("text", "bytes")),
    *(("date", "time"), ("time", "date"), ("double", "whole")),
}
"""Those in which Sail's CAST is Spark's: from one family to another."""


def computed(kind: type[Any], left: Typed, right: Typed) -> Typed:
    """Return `left kind right`, where kind is one of sqlglot's classes of operators."""
    families = {family(left[1]), family(right[1])}
    if isinstance(right[0], exp.Interval):
        return _moved(kind, left, right[0])
    if families == {"whole"}:
        return _whole(kind, left, right)
    if families <= {"whole", "decimal"} and kind in OPERATORS:
        sides = (left[0], _exact_type(left)), (right[0], _exact_type(right))
        return checked_decimal(OPERATORS[kind], *sides), decimal(result_type(OPERATORS[kind], sides[0][1], sides[1][1]))
    if families <= NUMBERS and kind in {exp.Add, exp.Sub, exp.Mul, exp.Div}:
        return kind(this=_inside(as_double(*left)), expression=_inside(as_double(*right))), "double"
    if [family(left[1]), right[1]] == ["date", "int"] and kind in {exp.Add, exp.Sub}:
        return call("date_add" if kind is exp.Add else "date_sub", left[0], right[0]), "date"
    raise NotOnSail("types", kind.__name__)


def negative(value: Typed) -> Typed:
    if family(value[1]) == "whole":
        return checked_whole(exp.Sub, exp.Literal.number(0), value[0], value[1]), value[1]
    if family(value[1]) == "decimal":
        return exp.Neg(this=signed(value[0], as_decimal(value[1]))), value[1]
    if value[1] == "double":
        return exp.Neg(this=_inside(value[0])), value[1]
    raise NotOnSail("types", "negative")


def converted(value: Typed, type_: str) -> exp.Expr:
    """Return CAST(value AS type_)."""
    node, given = value
    families = family(given), family(type_)
    if families[1] in {"other", "null"}:
        raise NotOnSail("types", f"cast to {type_}")
    if type_ == "string" and given in TIMES:
        return in_four_digits(node, given, cast(node, type_))
    if given in {type_, "void"} or families in CONVERSIONS:
        return cast(node, type_)
    if type_ == "double" and families[0] in NUMBERS:
        return as_double(node, given)
    if given == "timestamp" and type_ == "bigint":
        return whole_units(node, UNITS["second"])
    if given == "string" and is_time(node, type_):
        return cast(node, type_)
    raise NotOnSail("types", f"cast from {given} to {type_}")


def is_time(node: Any, type_: str) -> bool:
    """Return whether it is a date or a time as it is written in a query, in the form that all engines read."""
    if type_ not in TIMES or not isinstance(node, exp.Literal) or not TIMES[type_].fullmatch(node.name):
        return False
    try:
        datetime.fromisoformat(node.name)
    except ValueError:
        return False
    return True


def brought_to(value: Typed, type_: str) -> exp.Expr:
    """Return a value in the type that it has together with others, which has all of its values."""
    node, given = value
    if given in {type_, "void"} or {family(given), family(type_)} == {"whole"}:
        return node  # type: ignore[no-any-return]
    return converted(value, type_)


def difference(unit: str, start: Typed, end: Typed) -> exp.Expr:
    """Return timestampdiff of whole units of two timestamps or dates."""
    if not {start[1], end[1]} <= {"timestamp", "date"} or unit not in UNITS:
        raise NotOnSail("types", "timestampdiff")
    first, last = (micros(converted(moment, "timestamp")) for moment in (start, end))
    passed = cast(exp.Sub(this=last, expression=first), "bigint")
    return exp.IntDiv(this=passed, expression=cast(exp.Literal.number(UNITS[unit]), "bigint"))


def moved_by(value: Any, length: int) -> exp.Expr:
    """Return a timestamp plus microseconds."""
    return from_micros(exp.Add(this=micros(value), expression=cast(exp.Literal.number(length), "decimal(20,0)")))


def _whole(kind: type[Any], left: Typed, right: Typed) -> Typed:
    type_ = wider((left[1], right[1]))
    if kind in {exp.Add, exp.Sub, exp.Mul}:
        return checked_whole(kind, left[0], right[0], type_), type_
    if kind is exp.IntDiv:
        return plain_whole(kind, left[0], right[0], "bigint"), "bigint"
    if kind in {exp.Mod, exp.BitwiseAnd, exp.BitwiseOr}:
        return plain_whole(kind, left[0], right[0], type_), type_
    if kind is exp.BitwiseXor:
        return plain_whole(kind, kept(left[0]), right[0], type_), type_  # else NULL ^ NULL is 0
    if kind is exp.Div:
        return quotient(cast(left[0], "double"), cast(right[0], "double")), "double"
    raise NotOnSail("types", kind.__name__)


def _moved(kind: type[Any], value: Typed, interval: exp.Interval) -> Typed:
    length = interval_micros(interval) * {exp.Add: 1, exp.Sub: -1}[kind]
    if value[1] == "timestamp":
        return moved_by(value[0], length), "timestamp"
    if value[1] == "date" and length % DAY == 0 and _days(interval):
        return call("date_add", value[0], exp.Literal.number(length // DAY)), "date"
    raise NotOnSail("types", "interval")


def interval_micros(interval: exp.Interval) -> int:
    """Return the length of `INTERVAL 6 HOURS`; months have none."""
    unit, number = interval.args.get("unit"), interval.this
    name = unit.name.casefold().removesuffix("s") if isinstance(unit, exp.Var) else ""
    if name not in UNITS or not isinstance(number, exp.Literal) or not re.fullmatch(r"\d{1,9}", number.name):
        raise NotOnSail("types", "interval")
    return int(number.name) * UNITS[name]


def _days(interval: exp.Interval) -> bool:
    return interval.args["unit"].name.casefold().removesuffix("s") in {"day", "week"}


def _exact_type(value: Typed) -> DecimalType:
    """Return the type of an operand; an integer as it is written has as many digits as it has."""
    node = value[0].unnest()
    node = node.this if isinstance(node, exp.Neg) else node
    if family(value[1]) == "whole" and isinstance(node, exp.Literal):
        return literal_type(node.name)
    return as_decimal(value[1])


def _inside(node: Any) -> Any:
    """Return an operand that keeps its place in an expression."""
    return exp.Paren(this=node) if isinstance(node, exp.Binary | exp.Neg | exp.Case) else node
