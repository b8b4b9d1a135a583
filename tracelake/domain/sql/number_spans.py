"""Whole numbers as spans: which of them a condition lets through. Files that hold none of them need not be read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Final

from tracelake.domain.filter.tree import AllOf, AnyOf, Comparison, Filter, In, Op, Whole

Span = tuple[float, float]
"""Both ends in it; an end that is not infinite is a whole number, which Python compares exactly."""
Spans = tuple[Span, ...]
"""In order, and apart."""
ALL: Final[Spans] = ((float("-inf"), float("inf")),)


def overlap(spans: Spans, least: int, most: int) -> bool:
    return any(start <= most and least <= end for start, end in spans)


def compared_with(op: Op, number: int) -> Spans:
    """Those for which `value op number` is true."""
    match op:
        case Op.EQ:
            return ((number, number),)
        case Op.LT:
            return ((float("-inf"), number - 1),)
        case Op.LE:
            return ((float("-inf"), number),)
        case Op.GT:
            return ((number + 1, float("inf")),)
        case Op.GE:
            return ((number, float("inf")),)
        case Op.NE:
            return ALL


def passing(condition: Filter, column: str) -> Spans:
    """The numbers of a column with which a row can pass a filter of a DAG, and more where that is not certain."""
    match condition:
        case Comparison(name, op, Whole(number)) if name.casefold() == column:
            return compared_with(op, number)
        case In(name, values) if name.casefold() == column:
            numbers = [value.value for value in values if isinstance(value, Whole)]
            return united((number, number) for number in numbers) if len(numbers) == len(values) else ALL
        case AllOf(parts):
            return shared(passing(part, column) for part in parts)
        case AnyOf(parts):
            return united(span for part in parts for span in passing(part, column))
        case _:
            return ALL


def united(spans: Iterable[Span]) -> Spans:
    """Those that touch or overlap become one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)


def shared(given: Iterable[Spans]) -> Spans:
    """What is in all of them."""
    return reduce(_both, given, ALL)


def _both(left: Spans, right: Spans) -> Spans:
    """In one pass: a list in a query may be long."""
    found: list[Span] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start <= end:
            found.append((start, end))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)
