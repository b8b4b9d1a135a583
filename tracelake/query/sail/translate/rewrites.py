"""Expressions with which Sail gives Spark's value and type, or fails; then Spark runs the query.

Sail wraps around where an integer exceeds its type, and lets decimals have 39 digits. So integers are computed in a
wider type, and converted back, which fails where the value does not fit. Each operand occurs once: expressions that
contain each other stay as long as the query is.
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp

from tracelake.domain.sql.decimals import MOST, DecimalType, average_type, result_type
from tracelake.query.sail.translate.types import as_decimal, decimal, family

SUM_LIMITS: Final = {"bigint": "9e18", "decimal": "9e37"}
"""Less than the largest value, by more than what a sum of doubles can be wrong."""
EXACT_DOUBLES: Final = "9e15"
"""Integers up to here are doubles, and so are their sums, in any order."""
DIVISION_DIGITS: Final = 4
"""Sail's quotient of decimals has as many more digits behind the point than the dividend, and cuts off the others."""
SIGNED_DIGITS: Final = 34
DAYS: Final = (-719162, 2932896)
MICROS: Final = (DAYS[0] * 86400 * 10**6, (DAYS[1] + 1) * 86400 * 10**6 - 1)
"""From the year 1 to 9999."""
NAN: Final = "NaN"


def cast(value: Any, type_: str) -> exp.Cast:
    return exp.Cast(this=value, to=exp.DataType.build(type_, dialect="spark"))


def call(name: str, *arguments: Any) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=list(arguments))


def checked_whole(kind: type[exp.Binary], left: Any, right: Any, type_: str) -> exp.Expr:
    """Return integer arithmetic in `type_`, which fails where the result exceeds it."""
    wide = "decimal(20,0)" if type_ == "bigint" else "bigint"
    return cast(kind(this=cast(left, wide), expression=cast(right, wide)), type_)


def plain_whole(kind: type[exp.Binary], left: Any, right: Any, type_: str) -> exp.Expr:
    """Return an operation on integers that cannot exceed the type of its operands."""
    return cast(kind(this=cast(left, type_), expression=cast(right, type_)), type_)


def checked_decimal(operator: str, left: tuple[Any, DecimalType], right: tuple[Any, DecimalType]) -> exp.Expr:
    """Return the arithmetic of two decimals, of the type that Spark's has."""
    kinds = {"+": exp.Add, "-": exp.Sub, "*": exp.Mul, "/": exp.Div, "%": exp.Mod}
    (dividend, (_, scale)), (divisor, type_) = left, right
    wanted = result_type(operator, left[1], right[1])
    first = decimal(left[1])
    if operator == "/":
        first = decimal((MOST, max(scale, wanted[1] + 1 - DIVISION_DIGITS)))
    return fitted(kinds[operator](this=cast(dividend, first), expression=cast(divisor, decimal(type_))), wanted)


def fitted(value: exp.Expr, type_: DecimalType) -> exp.Expr:
    """Return a decimal rounded to a type; fails where it does not fit, and also with 38 digits, which Sail may have
    instead of 39.
    """
    if type_[0] < MOST:
        return cast(value, decimal(type_))
    return cast(cast(value, decimal((MOST - 1, type_[1]))), decimal(type_))


def signed(value: Any, type_: DecimalType) -> Any:
    """Return a decimal whose sign is going to change; fails with more than 34 digits, which Spark rounds away."""
    if type_[0] <= SIGNED_DIGITS:
        return value
    return cast(cast(value, decimal((SIGNED_DIGITS, min(type_[1], SIGNED_DIGITS)))), decimal(type_))


def quotient(left: Any, right: Any) -> exp.Expr:
    """Return the division of doubles, which fails by zero."""
    return exp.Div(this=left, expression=right)


def as_double(value: Any, type_: str) -> exp.Expr:
    """Return a number as the nearest double. Sail divides a decimal by its power of ten, and so rounds twice."""
    if type_ == "double":
        return value  # type: ignore[no-any-return]
    exact = family(type_) == "whole" or as_decimal(type_)[1] == 0
    return cast(value if exact else cast(value, "string"), "double")


def comparable(value: Any) -> exp.Expr:
    """Return a double of which there is one NaN and one zero, as Spark compares them."""
    nan = cast(exp.Literal.string(NAN), "double")
    return exp.Paren(this=exp.Add(this=call("nanvl", value, nan), expression=exp.Literal.number("0e0")))


def kept(value: Any) -> exp.Expr:
    """Return a value that Sail does not look into: compared with a constant, it would leave out a CAST that fails."""
    return call("nullif", value, exp.Null())


def guarded(limit: str, magnitude: Any, value: Any, type_: str) -> exp.Expr:
    """Return the value if the magnitude is below a limit; else it fails. No magnitude: there are no values."""
    below = exp.Or(
        this=exp.Is(this=magnitude, expression=exp.Null()),
        expression=exp.LT(this=magnitude.copy(), expression=exp.Literal.number(limit)),
    )
    failure = cast(call("raise_error", exp.Literal.string("over the limit")), type_)
    return exp.Case(ifs=[exp.If(this=below, true=value)], default=failure)


def magnitude(value: Any) -> exp.Anonymous:
    """Return the sum of what the values are without their signs: no sum of some of them is larger, in any order."""
    return call("sum", call("abs", cast(value.copy(), "double")))


def decimal_average(total: Any, count: Any, type_: DecimalType) -> exp.Expr:
    """Return a sum of decimals of a type, divided by their count; NULL if there are none."""
    wanted = average_type(type_)
    dividend = cast(total, decimal((MOST, max(type_[1], wanted[1] + 1 - DIVISION_DIGITS))))
    divisor = call("nullif", cast(count, "decimal(20,0)"), cast(exp.Literal.number(0), "decimal(20,0)"))
    return fitted(exp.Div(this=dividend, expression=divisor), wanted)


def count_where(condition: Any) -> exp.Anonymous:
    return call("count", exp.Case(ifs=[exp.If(this=condition, true=exp.Literal.number(1))]))


def in_four_digits(value: Any, type_: str, made: Any, made_type: str = "string") -> exp.Expr:
    """Return what is made of a date or timestamp; fails unless its year has four digits.

    Of others Sail may write the text `ERROR`, and computes times with which Spark fails.
    """
    number, bounds = ("unix_date", DAYS) if type_ == "date" else ("unix_micros", MICROS)
    low, high = (cast(exp.Literal.string(str(bound)), "bigint") for bound in bounds)
    known = exp.Between(this=cast(call(number, value.copy()), "bigint"), low=low, high=high)
    usual = exp.Or(this=exp.Is(this=value.copy(), expression=exp.Null()), expression=known)
    failure = cast(call("raise_error", exp.Literal.string("over the limit")), made_type)
    return exp.Case(ifs=[exp.If(this=usual, true=made)], default=failure)


def micros(value: Any) -> exp.Expr:
    """Return a timestamp as microseconds, for exact arithmetic."""
    return cast(call("unix_micros", value), "decimal(20,0)")


def whole_units(value: Any, length: int) -> exp.Expr:
    """Return how many units of some microseconds passed until a timestamp, rounded down, which Sail does not."""
    exact = cast(call("unix_micros", value), "decimal(38,6)")
    number = exp.Div(this=exact, expression=cast(exp.Literal.number(length), "decimal(7,0)"))
    return cast(call("floor", number), "bigint")


def from_micros(value: Any) -> exp.Expr:
    return call("timestamp_micros", cast(value, "bigint"))
