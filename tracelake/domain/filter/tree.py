"""A filter (`where`) as the only tree it may become, its normal form, and the JSON in which it is stored (S3).

The tree can say no more than: compare a column with a literal or another column, IN, IS NULL, AND, OR, NOT. Whoever
applies it builds expressions from these nodes; the text it came from is never put into SQL.

Two filters that differ only in the order of their parts have one normal form, so that rewriting one does not rebuild a
dataset. That is safe: AND and OR commute in three-valued logic, and NOT NOT x is x.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, assert_never

from tracelake.errors import BadInput

MAX_DEPTH = 20
MAX_NODES = 500
MAX_VALUES = 1_000
"""In all IN lists of one filter together."""
MAX_DIGITS = 38
"""What a Spark decimal holds."""
MAX_TEXT = 4_096

_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class InvalidFilter(BadInput):
    """`position` counts characters of the SQL text from 0; `key` is the column of the map at fault."""

    code = "invalid_filter"

    def __init__(
        self, message: str, *, position: int | None = None, key: str | None = None, hint: str | None = None
    ) -> None:
        where = None if position is None else f"character {position + 1}"
        super().__init__(message, where=key if where is None else where, hint=hint)
        self.position = position
        self.key = key


class Op(StrEnum):
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


FLIPPED = {Op.EQ: Op.EQ, Op.NE: Op.NE, Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE}


# One class for each kind of literal, because Python holds True, 1 and Decimal(1) to be equal and SQL does not.
@dataclass(frozen=True, slots=True)
class Text:
    value: str


@dataclass(frozen=True, slots=True)
class Whole:
    value: int


@dataclass(frozen=True, slots=True)
class Exact:
    """A number with a point, kept exactly: 0.1 must stay what was written."""

    value: Decimal


@dataclass(frozen=True, slots=True)
class Truth:
    value: bool


@dataclass(frozen=True, slots=True)
class ColumnRef:
    name: str


Literal = Text | Whole | Exact | Truth


@dataclass(frozen=True, slots=True)
class Comparison:
    column: str
    op: Op
    right: Literal | ColumnRef


@dataclass(frozen=True, slots=True)
class In:
    column: str
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    column: str


@dataclass(frozen=True, slots=True)
class Not:
    part: Filter


@dataclass(frozen=True, slots=True)
class AllOf:
    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Filter, ...]


Filter = Comparison | In | IsNull | Not | AllOf | AnyOf


def compared(column: str, op: Op, right: Literal | ColumnRef) -> Comparison:
    if isinstance(right, ColumnRef) and right.name < column:
        return Comparison(right.name, FLIPPED[op], ColumnRef(column))
    return Comparison(column, op, right)


def one_of(column: str, values: Iterable[Literal]) -> In:
    return In(column, tuple(sorted(set(values), key=lambda value: _dump(literal_json(value)))))


def negated(part: Filter) -> Filter:
    return part.part if isinstance(part, Not) else Not(part)


def all_of(parts: Iterable[Filter]) -> Filter:
    flat = _ordered(inner for part in parts for inner in (part.parts if isinstance(part, AllOf) else (part,)))
    return flat[0] if len(flat) == 1 else AllOf(flat)


def any_of(parts: Iterable[Filter]) -> Filter:
    flat = _ordered(inner for part in parts for inner in (part.parts if isinstance(part, AnyOf) else (part,)))
    return flat[0] if len(flat) == 1 else AnyOf(flat)


def columns_of(tree: Filter) -> frozenset[str]:
    """Every column the filter reads."""
    match tree:
        case Comparison(column, _, right):
            return frozenset({column, right.name} if isinstance(right, ColumnRef) else {column})
        case In(column) | IsNull(column):
            return frozenset({column})
        case Not(part):
            return columns_of(part)
        case AllOf(parts) | AnyOf(parts):
            return frozenset().union(*map(columns_of, parts))
        case _:
            assert_never(tree)


def as_json(tree: Filter) -> dict[str, Any]:
    """The stored form; `filter_json.from_json` reads it back."""
    match tree:
        case Comparison(column, op, right):
            value = {"column": right.name} if isinstance(right, ColumnRef) else literal_json(right)
            return {str(op): [column, value]}
        case In(column, values):
            return {"in": [column, [literal_json(value) for value in values]]}
        case IsNull(column):
            return {"is_null": column}
        case Not(part):
            return {"not": as_json(part)}
        case AllOf(parts):
            return {"and": [as_json(part) for part in parts]}
        case AnyOf(parts):
            return {"or": [as_json(part) for part in parts]}
        case _:
            assert_never(tree)


def canonical(tree: Filter) -> str:
    """The stored form as text: equal for equal filters."""
    return _dump(as_json(tree))


def literal_json(value: Literal) -> Any:
    match value:
        case Text(text):
            return text
        case Truth(truth):
            return truth
        case Whole(number):
            # Not every JSON reader keeps a larger number whole.
            return number if -(2**63) <= number < 2**63 else {"integer": str(number)}
        case Exact(number):
            return {"decimal": f"{number:f}"}
        case _:
            assert_never(value)


def column_name(name: str, *, position: int | None = None) -> str:
    if _COLUMN.fullmatch(name) is None:
        raise InvalidFilter(
            f"{name[:80]!r} is not a plain column name",
            position=position,
            key=name if position is None else None,
            hint="letters, digits and underscores, not starting with a digit",
        )
    return name


def text_literal(text: str) -> Text:
    if len(text) > MAX_TEXT:
        raise InvalidFilter(f"a text of {len(text)} characters is too long", hint=f"at most {MAX_TEXT}")
    if any(letter == "\x00" or "\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidFilter("the text holds a character that no database can store (NUL or half a surrogate pair)")
    return Text(text)


def whole_literal(number: int) -> Whole:
    if abs(number) >= 10**MAX_DIGITS:
        raise InvalidFilter(f"a number has at most {MAX_DIGITS} digits", hint="compare it as text in single quotes")
    return Whole(number)


def exact_literal(number: Decimal) -> Exact:
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidFilter("a number must be finite")
    if max(len(digits) + max(exponent, 0), -exponent) > MAX_DIGITS:
        raise InvalidFilter(f"a number has at most {MAX_DIGITS} digits")
    if not any(digits):
        return Exact(Decimal(0))
    kept = "".join(map(str, digits)).rstrip("0")
    trailing = len(digits) - len(kept)
    # Not `normalize()`: it rounds to the precision of the thread's decimal context.
    return Exact(Decimal((sign, tuple(map(int, kept)), exponent + trailing)))


def check_size(tree: Filter) -> Filter:
    """Refuse a tree that is too deep, or too large to evaluate for every row; else give it back."""
    nodes, values = _size(tree, 1)
    if nodes > MAX_NODES or values > MAX_VALUES:
        raise InvalidFilter(
            f"the filter is too large: {nodes} conditions, {values} values in IN lists",
            hint=f"at most {MAX_NODES} conditions and {MAX_VALUES} values; join with a dataset of values instead",
        )
    return tree


def too_deep(position: int | None = None) -> InvalidFilter:
    return InvalidFilter(f"the filter is nested more than {MAX_DEPTH} levels deep", position=position)


def _size(tree: Filter, depth: int) -> tuple[int, int]:
    if depth > MAX_DEPTH:
        raise too_deep()
    match tree:
        case Comparison() | IsNull():
            return 1, 0
        case In(_, values):
            return 1, len(values)
        case Not(part):
            parts: tuple[Filter, ...] = (part,)
        case AllOf(inner) | AnyOf(inner):
            parts = inner
        case _:
            assert_never(tree)
    sizes = [_size(part, depth + 1) for part in parts]
    return 1 + sum(nodes for nodes, _ in sizes), sum(values for _, values in sizes)


def _ordered(parts: Iterable[Filter]) -> tuple[Filter, ...]:
    return tuple(part for _, part in sorted({canonical(part): part for part in parts}.items()))


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
