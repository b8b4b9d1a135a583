"""The stored form of a filter, back into its tree: as strict as the parser, for a row may be older than the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

from tracelake.domain.filter.tree import (
    MAX_DEPTH,
    MAX_DIGITS,
    ColumnRef,
    Filter,
    InvalidFilter,
    IsNull,
    Literal,
    Op,
    Truth,
    all_of,
    any_of,
    check_size,
    column_name,
    compared,
    exact_literal,
    negated,
    one_of,
    text_literal,
    too_deep,
    whole_literal,
)

N = TypeVar("N")

_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_INTEGER = re.compile(r"-?[0-9]+")


def from_json(stored: Any) -> Filter:
    return check_size(_read(stored, 1))


def _read(stored: Any, depth: int) -> Filter:
    if depth > MAX_DEPTH:
        raise too_deep()
    match stored:
        case {"and": [_, *_] as parts, **rest} if not rest:
            return all_of(_read(part, depth + 1) for part in parts)
        case {"or": [_, *_] as parts, **rest} if not rest:
            return any_of(_read(part, depth + 1) for part in parts)
        case {"not": part, **rest} if not rest:
            return negated(_read(part, depth + 1))
        case {"is_null": str(column), **rest} if not rest:
            return IsNull(column_name(column))
        case {"in": [str(column), [_, *_] as values], **rest} if not rest:
            return one_of(column_name(column), map(_literal, values))
        case dict() if len(stored) == 1:
            return _comparison(stored)
        case _:
            raise _unknown(stored)


def _comparison(stored: dict[Any, Any]) -> Filter:
    match next(iter(stored.items())):
        case (("eq" | "ne" | "lt" | "le" | "gt" | "ge") as op, [str(column), {"column": str(other), **rest}]) if (
            not rest
        ):
            return compared(column_name(column), Op(op), ColumnRef(column_name(other)))
        case (("eq" | "ne" | "lt" | "le" | "gt" | "ge") as op, [str(column), value]):
            return compared(column_name(column), Op(op), _literal(value))
        case _:
            raise _unknown(stored)


def _literal(stored: Any) -> Literal:
    match stored:
        case bool():
            return Truth(stored)
        case int():
            return whole_literal(stored)
        case str():
            return text_literal(stored)
        case {"integer": str(digits), **rest} if not rest:
            return whole_literal(_number(digits, _INTEGER, int))
        case {"decimal": str(digits), **rest} if not rest:
            return exact_literal(_number(digits, _DECIMAL, Decimal))
        case _:
            raise _unknown(stored)


def _number(digits: str, shape: re.Pattern[str], make: Callable[[str], N]) -> N:
    if len(digits) > MAX_DIGITS + len("-0.") or shape.fullmatch(digits) is None:
        raise _unknown(digits)
    return make(digits)


def _unknown(stored: Any) -> InvalidFilter:
    return InvalidFilter(f"{repr(stored)[:80]} is not part of a stored filter")
