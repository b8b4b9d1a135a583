"""Parses filters on inputs (`where`) (S3).

A map means equality on each key; a string is SQL of the smallest kind. Both become the tree of `tree.py`, which is
what is stored, hashed and applied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tracelake.domain.filter.from_sql import parse_sql
from tracelake.domain.filter.tree import (
    Filter,
    InvalidFilter,
    Literal,
    Op,
    Truth,
    all_of,
    check_size,
    column_name,
    compared,
    exact_literal,
    text_literal,
    whole_literal,
)


def parse_where(where: str | Mapping[str, Any]) -> Filter:
    return parse_sql(where) if isinstance(where, str) else _from_map(where)


def _from_map(where: Mapping[str, Any]) -> Filter:
    if not where:
        raise InvalidFilter("the filter is empty", hint="leave `where` out to read everything")
    parts = [compared(column_name(column), Op.EQ, _value(column, value)) for column, value in where.items()]
    return check_size(all_of(parts))


def _value(column: str, value: Any) -> Literal:
    try:
        return _literal(column, value)
    except InvalidFilter as refusal:
        raise InvalidFilter(refusal.message, key=column, hint=refusal.hint) from None


def _literal(column: str, value: Any) -> Literal:
    match value:
        case bool():
            return Truth(value)
        case int():
            return whole_literal(value)
        case float() if math.isfinite(value):
            return exact_literal(Decimal(repr(value)))
        case str():
            return text_literal(value)
        case None:
            raise InvalidFilter("nothing equals null", hint=f'write where: "{column} IS NULL"')
        case list() | tuple():
            raise InvalidFilter("a map compares each column with one value", hint=f'write where: "{column} IN (...)"')
        case _:
            raise InvalidFilter("the value must be text, a number, true or false")
