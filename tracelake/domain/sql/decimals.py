"""Spark's rules for the precision and scale of decimals: what an operator or an aggregate makes of its operands.

A type is a pair: digits in all, and digits behind the point. Beyond 38 digits Spark keeps the digits before the point,
and of those behind it at least six. `tests/query/sail/test_decimal_types.py` compares each rule with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

DecimalType = tuple[int, int]
MOST: Final = 38
KEPT_SCALE: Final = 6


def result_type(operator: str, left: DecimalType, right: DecimalType) -> DecimalType:
    """Return the type of `left operator right`; the operator is one of + - * / %."""
    return _OPERATORS[operator](*left, *right)


def sum_type(value: DecimalType) -> DecimalType:
    return min(value[0] + 10, MOST), value[1]


def average_type(value: DecimalType) -> DecimalType:
    return min(value[0] + 4, MOST), min(value[1] + 4, MOST)


def round_type(value: DecimalType, places: int) -> DecimalType:
    """Return the type of `round(value, places)`; `places` is not negative."""
    scale = min(value[1], places)
    return min(value[0] - value[1] + 1 + scale, MOST), scale


def floor_type(value: DecimalType) -> DecimalType:
    """Return the type of `floor(value)` and `ceil(value)`."""
    return value if value[1] == 0 else (min(value[0] - value[1] + 1, MOST), 0)


def wider_type(types: Iterable[DecimalType]) -> DecimalType | None:
    """Return the type that has every value of all of them; None: there is none."""
    found = list(types)
    scale = max(scale for _, scale in found)
    precision = max(precision - scale for precision, scale in found) + scale
    return (precision, scale) if precision <= MOST else None


def literal_type(text: str) -> DecimalType:
    """Return the type of a number as it is written: 1.50 is decimal(3,2), and 0.001 decimal(3,3)."""
    before, _, behind = text.lstrip("-").partition(".")
    digits = (before + behind).lstrip("0")
    return max(len(digits), len(behind), 1), len(behind)


def _sum(p1: int, s1: int, p2: int, s2: int) -> DecimalType:
    scale = max(s1, s2)
    return _adjusted(max(p1 - s1, p2 - s2) + scale + 1, scale)


def _product(p1: int, s1: int, p2: int, s2: int) -> DecimalType:
    return _adjusted(p1 + p2 + 1, s1 + s2)


def _quotient(p1: int, s1: int, p2: int, s2: int) -> DecimalType:
    scale = max(KEPT_SCALE, s1 + p2 + 1)
    return _adjusted(p1 - s1 + s2 + scale, scale)


def _remainder(p1: int, s1: int, p2: int, s2: int) -> DecimalType:
    scale = max(s1, s2)
    return _adjusted(min(p1 - s1, p2 - s2) + scale, scale)


def _adjusted(precision: int, scale: int) -> DecimalType:
    if precision <= MOST:
        return precision, scale
    before = precision - scale
    return MOST, max(MOST - before, min(scale, KEPT_SCALE))


_OPERATORS: Final[Mapping[str, Callable[[int, int, int, int], DecimalType]]] = {
    "+": _sum,
    "-": _sum,
    "*": _product,
    "/": _quotient,
    "%": _remainder,
}
