"""Sums, averages and extremes for Sail. A sum that could exceed its type on the way fails, and Spark runs the query.

Whether Spark fails depends on the order in which it adds. Sail's answer counts only where no order can exceed the type:
where the values without their signs stay below it together. Sums of doubles depend on their order, and are Spark's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from tracelake.domain.sql.decimals import MOST, average_type, sum_type
from tracelake.query.sail.translate.arithmetic import Typed
from tracelake.query.sail.translate.rewrites import (
    EXACT_DOUBLES,
    SUM_LIMITS,
    call,
    cast,
    count_where,
    decimal_average,
    guarded,
    magnitude,
    quotient,
)
from tracelake.query.sail.translate.types import NotOnSail, as_decimal, decimal, family

AGGREGATES: Final = frozenset({"sum", "avg", "mean", "max", "min"})
EXTREMES: Final = frozenset({"max", "min"})
LARGEST_DOUBLE: Final = "1.7976931348623157e308"
Wrap = Callable[[Any], Any]
"""Puts the FILTER and the OVER of a call around another."""


def aggregated(name: str, value: Typed, wrap: Wrap) -> Typed:
    kind = family(value[1])
    if name in EXTREMES:
        return (_double_extreme(name, value, wrap) if kind == "double" else _extreme(name, value, wrap)), value[1]
    if kind not in {"whole", "decimal"}:
        raise NotOnSail("function", f"{name}({kind})")
    if name == "sum":
        return _whole_sum(value, wrap) if kind == "whole" else _decimal_sum(value, wrap)
    return _whole_average(value, wrap) if kind == "whole" else _decimal_average(value, wrap)


def _whole_sum(value: Typed, wrap: Wrap) -> Typed:
    total = wrap(call("sum", cast(value[0].copy(), "bigint")))
    return guarded(SUM_LIMITS["bigint"], wrap(magnitude(value[0])), total, "bigint"), "bigint"


def _decimal_sum(value: Typed, wrap: Wrap) -> Typed:
    type_ = sum_type(as_decimal(value[1]))
    total = wrap(call("sum", value[0].copy()))
    if type_[0] < MOST:  # it takes ten thousand million rows to exceed it
        return cast(total, decimal(type_)), decimal(type_)
    limit = f"9e{MOST - 1 - type_[1]}"
    return guarded(limit, wrap(magnitude(value[0])), cast(total, decimal(type_)), decimal(type_)), decimal(type_)


def _whole_average(value: Typed, wrap: Wrap) -> Typed:
    """Spark adds doubles. Up to a limit these are exact, and so is the sum of integers."""
    total = cast(wrap(call("sum", cast(value[0].copy(), "bigint"))), "double")
    count = cast(call("nullif", wrap(call("count", value[0].copy())), cast(exp.Literal.number(0), "bigint")), "double")
    return guarded(EXACT_DOUBLES, wrap(magnitude(value[0])), quotient(total, count), "double"), "double"


def _decimal_average(value: Typed, wrap: Wrap) -> Typed:
    given = as_decimal(value[1])
    total, _ = _decimal_sum(value, wrap)
    count = wrap(call("count", value[0].copy()))
    return decimal_average(total, count, given), decimal(average_type(given))


def _extreme(name: str, value: Typed, wrap: Wrap) -> Any:
    if family(value[1]) not in {"whole", "decimal", "text", "date", "time"}:
        raise NotOnSail("function", f"{name}({value[1]})")
    return wrap(call(name, value[0]))


def _double_extreme(name: str, value: Typed, wrap: Wrap) -> exp.Expr:
    """Return the largest or smallest double; NaN is larger than all others.

    Which of two zeros it is depends on the order of the rows: then it fails. It fails for infinity too, instead of
    which Sail may give the largest double.
    """
    number, nan = value[0], cast(exp.Literal.string("NaN"), "double")
    known = exp.Case(ifs=[exp.If(this=call("isnan", number.copy()), true=cast(exp.Null(), "double"))], default=number)
    found = wrap(call(name, known))
    zero = exp.EQ(this=cast(number.copy(), "string"), expression=exp.Literal.string("-0.0"))
    nans, zeros = (wrap(count_where(item)) for item in (call("isnan", number.copy()), zero))
    only_nan = exp.Is(this=found.copy(), expression=exp.Null()) if name == "min" else exp.true()
    is_nan = exp.And(this=_positive(nans), expression=only_nan)
    is_zero = exp.And(this=exp.EQ(this=found.copy(), expression=exp.Literal.number("0e0")), expression=_positive(zeros))
    is_endless = exp.GTE(this=call("abs", found.copy()), expression=exp.Literal.number(LARGEST_DOUBLE))
    unsure = exp.Or(this=exp.Paren(this=is_zero), expression=is_endless)
    failure = cast(call("raise_error", exp.Literal.string("over the limit")), "double")
    return exp.Case(ifs=[exp.If(this=is_nan, true=nan), exp.If(this=unsure, true=failure)], default=found)


def _positive(count: Any) -> exp.Expr:
    return exp.GT(this=count, expression=exp.Literal.number(0))
