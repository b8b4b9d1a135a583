"""Filters against SQLite: what our parser and evaluator make of a text is what a database makes of it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.evaluate_filter import holds
from tracelake.domain.filter.from_json import from_json
from tracelake.domain.filter.parse import parse_where
from tracelake.domain.filter.tree import (
    AllOf,
    AnyOf,
    ColumnRef,
    Comparison,
    Exact,
    Filter,
    In,
    InvalidFilter,
    IsNull,
    Literal,
    Not,
    Op,
    Text,
    Truth,
    Whole,
    all_of,
    any_of,
    as_json,
    canonical,
    columns_of,
    compared,
    exact_literal,
    negated,
    one_of,
)

NUMBERS, TEXTS = ("n", "m"), ("s", "t")
SIGNS = {Op.EQ: "=", Op.NE: "<>", Op.LT: "<", Op.LE: "<=", Op.GT: ">", Op.GE: ">="}

a_whole = st.integers(-3, 3).map(Whole) | st.integers(-(10**38) + 1, 10**38 - 1).map(Whole)
a_text = st.text("abAB' \"-;é\\", max_size=4).map(Text)
an_exact = st.decimals(-99, 99, allow_nan=False, allow_infinity=False, places=3).map(exact_literal)


Kind = tuple[tuple[str, ...], st.SearchStrategy[Literal]]
OF_NUMBERS: Kind = (NUMBERS, st.integers(-3, 3).map(Whole))
OF_TEXTS: Kind = (TEXTS, a_text)


@st.composite
def comparisons(draw: st.DrawFn) -> Filter:
    columns, literals = draw(st.sampled_from([OF_NUMBERS, OF_TEXTS]))
    right: Literal | ColumnRef = draw(literals) if draw(st.booleans()) else ColumnRef(draw(st.sampled_from(columns)))
    return compared(draw(st.sampled_from(columns)), draw(st.sampled_from(Op)), right)


@st.composite
def memberships(draw: st.DrawFn) -> Filter:
    columns, literals = draw(st.sampled_from([OF_NUMBERS, OF_TEXTS]))
    return one_of(draw(st.sampled_from(columns)), draw(st.lists(literals, min_size=1, max_size=4)))


leaves = comparisons() | memberships() | st.sampled_from(NUMBERS + TEXTS).map(IsNull)
trees: st.SearchStrategy[Filter] = st.recursive(
    leaves,
    lambda inner: (
        inner.map(negated)
        | st.lists(inner, min_size=1, max_size=3).map(all_of)
        | st.lists(inner, min_size=1, max_size=3).map(any_of)
    ),
    max_leaves=8,
)
any_literal: st.SearchStrategy[Literal] = a_whole | a_text | an_exact | st.booleans().map(Truth)
any_leaves = st.builds(compared, st.sampled_from("abc"), st.sampled_from(Op), any_literal) | st.builds(
    one_of, st.sampled_from("abc"), st.lists(any_literal, min_size=1, max_size=5)
)
rows = st.fixed_dictionaries(
    {name: st.none() | st.integers(-3, 3) for name in NUMBERS}
    | {name: st.none() | a_text.map(lambda text: text.value) for name in TEXTS}
)


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    yield connection
    connection.close()


def as_sql(tree: Filter) -> str:  # noqa: PLR0911 - one for each kind of node
    match tree:
        case Comparison(column, op, right):
            return f"{column} {SIGNS[op]} {right.name if isinstance(right, ColumnRef) else literal_sql(right)}"
        case In(column, values):
            return f"{column} IN ({', '.join(map(literal_sql, values))})"
        case IsNull(column):
            return f"{column} IS NULL"
        case Not(IsNull(column)):
            return f"{column} is not  null"
        case Not(In() as inner):
            return as_sql(inner).replace(" IN ", " not in ", 1)
        case Not(inner):
            return f"NOT ({as_sql(inner)})"
        case AllOf(filters):
            return " AND ".join(f"({as_sql(inner)})" for inner in filters)
        case AnyOf(filters):
            return "\nor ".join(f"({as_sql(inner)})" for inner in filters)


def literal_sql(value: Literal) -> str:
    match value:
        case Text(text):
            return "'" + text.replace("'", "''") + "'"
        case Exact(number):
            return f"{number:f}" if number != number.to_integral() else f"{number:f}.0"
        case Whole(whole):
            return str(whole)
        case Truth(truth):
            return str(truth)


@settings(max_examples=150)
@given(trees, rows)
def test_a_filter_says_of_a_row_what_sqlite_says(
    sqlite: sqlite3.Connection, tree: Filter, row: dict[str, int | str | None]
) -> None:
    text = as_sql(tree)
    columns = ", ".join(f":{name} AS {name}" for name in row)
    (verdict,) = sqlite.execute(f"SELECT {text} FROM (SELECT {columns})", row).fetchone()  # noqa: S608 - a test's own text
    assert holds(parse_where(text), row) == (None if verdict is None else bool(verdict))


@settings(max_examples=30)
@given(rows)
def test_not_binds_before_and_before_or(sqlite: sqlite3.Connection, row: dict[str, int | str | None]) -> None:
    text = "not n = 1 and m = 1 or n = 2 and not m in (1, 2) or not n is null and m > n"
    columns = ", ".join(f":{name} AS {name}" for name in row)
    (verdict,) = sqlite.execute(f"SELECT {text} FROM (SELECT {columns})", row).fetchone()  # noqa: S608 - a test's own text
    assert holds(parse_where(text), row) == (None if verdict is None else bool(verdict))


@given(trees | any_leaves)
def test_sql_and_stored_json_both_lead_back_to_the_tree(tree: Filter) -> None:
    assert parse_where(as_sql(tree)) == tree
    assert from_json(json.loads(canonical(tree))) == tree


@given(st.permutations([parse_where("n = 1"), parse_where("s = 'x' or m > 2"), parse_where("not t is null")]))
def test_the_order_of_conditions_does_not_change_the_stored_form(filters: list[Filter]) -> None:
    assert canonical(all_of(filters)) == canonical(all_of(reversed(filters)))
    assert canonical(any_of([*filters, filters[0]])) == canonical(any_of(filters))


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from("abc"), st.booleans() | st.integers() | st.floats() | st.text(), min_size=1))
def test_a_map_is_equality_on_each_key_or_refused(where: dict[str, bool | float | str]) -> None:
    try:
        tree = parse_where(where)
    except InvalidFilter as refusal:
        assert refusal.key in where  # noqa: PT017 - the other arm matters as much
    else:
        assert columns_of(tree) == set(where)
        exact = {key: Decimal(repr(value)) if isinstance(value, float) else value for key, value in where.items()}
        assert holds(tree, exact)


@given(st.text(max_size=60) | st.text("anot()in,=<>'\"1.-;/* :?@$[]", max_size=60))
def test_any_text_is_a_filter_or_refused_at_a_place(text: str) -> None:
    try:
        tree = parse_where(text)
    except InvalidFilter as refusal:
        assert refusal.position is None or 0 <= refusal.position <= len(text)  # noqa: PT017
    else:
        assert from_json(as_json(tree)) == tree


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["and", "or", "not", "in", "eq", "is_null", "decimal", "integer", "x"]), inner, max_size=2
        )
    ),
    max_leaves=8,
)


@given(json_values)
def test_any_stored_json_is_a_filter_or_refused(stored: object) -> None:
    try:
        tree = from_json(stored)
    except InvalidFilter:
        return
    assert from_json(as_json(tree)) == tree
