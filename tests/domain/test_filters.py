"""`where`: what is accepted, as which tree, and every hostile text refused at its character."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.evaluate_filter import holds
from tracelake.domain.filter.from_json import from_json
from tracelake.domain.filter.parse import parse_where
from tracelake.domain.filter.tree import InvalidFilter, as_json, columns_of


@pytest.mark.parametrize(
    ("where", "stored"),
    [
        ("severity = 'critical'", {"eq": ["severity", "critical"]}),
        ({"severity": "critical"}, {"eq": ["severity", "critical"]}),
        ({"b": 2, "a": True}, {"and": [{"eq": ["a", True]}, {"eq": ["b", 2]}]}),
        ({"a": 0.1}, {"eq": ["a", {"decimal": "0.1"}]}),
        ("a <> 1", {"ne": ["a", 1]}),
        ("a != 1", {"ne": ["a", 1]}),
        ("5 < a", {"gt": ["a", 5]}),
        ("a >= -5", {"ge": ["a", -5]}),
        ("a = 1.50", {"eq": ["a", {"decimal": "1.5"}]}),
        ("a = 'it''s'", {"eq": ["a", "it's"]}),
        ("a = FALSE", {"eq": ["a", False]}),
        ("b < a", {"gt": ["a", {"column": "b"}]}),
        ("\"from\" = 'x'", {"eq": ["from", "x"]}),
        ("date >= '2025-01-01'", {"ge": ["date", "2025-01-01"]}),
        ("a is null", {"is_null": "a"}),
        ("a IS NOT NULL", {"not": {"is_null": "a"}}),
        ("a in (3, 1, 3)", {"in": ["a", [1, 3]]}),
        ("a not in ('x')", {"not": {"in": ["a", ["x"]]}}),
        ("not not a = 1", {"eq": ["a", 1]}),
        ("((a = 1)) and (b = 2 and c = 3)", {"and": [{"eq": ["a", 1]}, {"eq": ["b", 2]}, {"eq": ["c", 3]}]}),
        ("a = 1 or a = 1", {"eq": ["a", 1]}),
        ("a = 99999999999999999999", {"eq": ["a", {"integer": "99999999999999999999"}]}),
        ("a = '-- no comment; /* here */'", {"eq": ["a", "-- no comment; /* here */"]}),
    ],
)
def test_a_filter_is_stored_as_its_tree(where: str | dict[str, Any], stored: dict[str, Any]) -> None:
    tree = parse_where(where)
    assert as_json(tree) == stored
    assert from_json(stored) == tree


@pytest.mark.parametrize(
    ("where", "character", "reason"),
    [
        # Subqueries and functions, in every place where a value can stand.
        ("a = (SELECT 1)", 6, "subqueries"),
        ("a = (1)", 5, "'('"),
        ("a IN (SELECT b FROM c)", 7, "subqueries"),
        ("EXISTS (SELECT 1)", 9, "subqueries"),
        ("EXISTS (TABLE b)", 1, "subqueries"),
        ("(select 1) = a", 2, "subqueries"),
        ("a = ANY (b)", 5, "subqueries"),
        ("a = 1 UNION SELECT 2", 13, "subqueries"),
        ("a = 1 UNION TABLE b", 7, "'UNION'"),
        ("lower(a) = 'x'", 1, "functions"),
        ("a = reflect('java.lang.System', 'exit')", 5, "functions"),
        ("a = current_date", 5, "function"),
        ("a = CURRENT_USER", 5, "function"),
        ("cast(a AS int) = 1", 1, "functions"),
        ("CASE WHEN a = 1 THEN 2 END", 6, "'WHEN'"),
        # Names.
        ("t.a = 1", 2, "qualified"),
        ("s.t.a = 1", 2, "qualified"),
        ("`a` = 1", 1, "'`'"),
        ('"a.b" = 1', 1, "plain column"),
        ('"" = 1', 1, "plain column"),
        ('a = "x"', 5, "'x'"),
        ('a IN ("x")', 7, "'x'"),
        ("[a] = 1", 1, "'['"),
        ("a[0] = 1", 2, "'['"),
        # Comments and hints.
        ("a = 1 -- x", 7, "comments"),
        ("a /* x */ = 1", 3, "comments"),
        ("/*+ hint */ a = 1", 1, "comments"),
        ("a = 1 /*", 7, "not closed"),
        ("a = 1 # x", 7, "'#'"),
        # Parameter markers and templates.
        ("a = ?", 5, "parameter"),
        ("a = :b", 5, "parameter"),
        ("a = @b", 5, "parameter"),
        ("a = $1", 5, "'$1'"),
        ("a = ${env:HOME}", 5, "'$'"),
        ("a = {{ b }}", 5, "'{'"),
        ("a = {% b %}", 5, "'{%'"),
        # Casts, other literals, other operators.
        ("a::int = 1", 2, "casts"),
        ("a = DATE '2025-01-01'", 10, "'2025-01-01'"),
        ("a = INTERVAL 1 DAY", 14, "'1'"),
        ("a = x'1f'", 6, "'1f'"),
        ("a = N'x'", 5, "N'x'"),
        ("a = 1e5", 5, "not a number"),
        ("a = 5.", 5, "not a number"),
        ("a = .5", 5, "qualified"),
        ("a = 1_000", 6, "'_000'"),
        ("a = 0x1F", 6, "'x1F'"),
        ("a = " + "9" * 39, 5, "38 digits"),
        ("a = " + "9" * 5000, 5, "38 digits"),
        ("a = 0." + "9" * 38 + "1", 5, "38 digits"),
        ("a + 1 = 2", 3, "'+'"),
        ("a || 'x' = 'y'", 3, "'||'"),
        ("a == 1", 3, "'=='"),
        ("a <=> 1", 3, "'<=>'"),
        ("a BETWEEN 1 AND 2", 3, "'BETWEEN'"),
        ("a LIKE 'x%'", 3, "'LIKE'"),
        ("a NOT LIKE 'x%'", 7, "'LIKE'"),
        ("a IS TRUE", 6, "'TRUE'"),
        ("a IS NOT DISTINCT FROM 1", 10, "'DISTINCT'"),
        ("a = NULL", 5, "'NULL'"),
        ("a IN (1, NULL)", 10, "'NULL'"),
        ("a IN ()", 7, "')'"),
        ("(a, b) IN ((1, 2))", 3, "','"),
        # Nothing to compare.
        ("a", 2, "the end"),
        ("NOT a", 6, "the end"),
        ("TRUE", 5, "the end"),
        ("1 = 1", 5, "'1'"),
        ("'a' = 'a'", 7, "'a'"),
        ("a = ", 5, "the end"),
        ("= 1", 1, "'='"),
        ("a = 1 AND", 10, "the end"),
        ("a = 1 b = 2", 7, "'b'"),
        ("(a = 1", 7, "the end"),
        ("a = 1)", 6, "')'"),
        ("", 1, "empty"),
        (" \n", 1, "empty"),
        # More than one statement.
        ("a = 1;", 6, "';'"),
        ("a = 1; DROP TABLE x", 6, "';'"),
        # Characters that look like nothing, or like something else.
        ("a\x00 = 1", 1, "a\\x00"),
        ("a\u200b = 1", 1, "a\\u200b"),
        ("a\u00a0= 1", 2, "xa0"),
        ("a = 1\u2028AND b = 2", 6, "u2028"),
        ("\uff41 = 1", 1, "\\uff41"),
        ("a \uff1d 1", 3, "\\uff1d"),
        ("a = 'x\x00'", 5, "no database"),
        ("a = 'x\ud800'", 5, "no database"),
        ("a = 'x", 5, "not closed"),
        ("a = 'it\\'s'", 11, "not closed"),
        # Size.
        ("(" * 21 + "a = 1" + ")" * 21, 21, "levels deep"),
        ("NOT " * 25 + "a = 1", 81, "levels deep"),
        ("(" * 30_000, 21, "levels deep"),
        ("a IN (" + ",".join("1" * 1001) + ")", 2007, "1000 values"),
    ],
)
def test_anything_else_is_refused_at_its_character(where: str, character: int, reason: str) -> None:
    with pytest.raises(InvalidFilter) as refusal:
        parse_where(where)
    assert reason in refusal.value.message
    assert refusal.value.where == f"character {character}"


@pytest.mark.parametrize(
    "where",
    ["a = '" + "x" * 70_000 + "'", " OR ".join(f"a = {number}" for number in range(501)), "a = '" + "x" * 5_000 + "'"],
)
def test_a_filter_has_a_largest_size(where: str) -> None:
    with pytest.raises(InvalidFilter):
        parse_where(where)


@pytest.mark.parametrize(
    ("where", "key", "hint"),
    [
        ({}, None, "leave `where` out"),
        ({"a": None}, "a", "a IS NULL"),
        ({"a": [1, 2]}, "a", "a IN"),
        ({"a": {"b": 1}}, "a", None),
        ({"a": float("nan")}, "a", None),
        ({"a b": 1}, "a b", "letters"),
        ({"a": 1, "t.b": 2}, "t.b", "letters"),
        ({"a": 10**38}, "a", "text"),
        ({"a": "\x00"}, "a", None),
    ],
)
def test_a_map_is_refused_at_its_key(where: dict[str, Any], key: str | None, hint: str | None) -> None:
    with pytest.raises(InvalidFilter) as refusal:
        parse_where(where)
    assert refusal.value.key == key
    assert (hint or "") in (refusal.value.hint or "")


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        {},
        {"eq": ["a", 1], "ne": ["a", 1]},
        {"eq": ["a"]},
        {"eq": ["a", None]},
        {"eq": ["a", 0.5]},
        {"eq": ["a.b", 1]},
        {"eq": ["a", {"decimal": "1e5"}]},
        {"eq": ["a", {"decimal": "9" * 5000}]},
        {"eq": ["a", {"column": "b", "x": 1}]},
        {"and": []},
        {"in": ["a", []]},
        {"in": ["a", [{"column": "b"}]]},
        {"like": ["a", "x"]},
        {"not": None},
    ],
)
def test_a_stored_tree_is_read_as_strictly(stored: object) -> None:
    with pytest.raises(InvalidFilter):
        from_json(stored)


def test_a_stored_tree_that_is_too_deep_is_refused() -> None:
    stored: dict[str, Any] = {"is_null": "a"}
    for _ in range(10_000):
        stored = {"not": stored}
    with pytest.raises(InvalidFilter):
        from_json(stored)


def test_three_valued_logic() -> None:
    unknown = {"a": None, "b": 1}
    assert holds(parse_where("a = 1"), unknown) is None
    assert holds(parse_where("not a = 1"), unknown) is None
    assert holds(parse_where("a = 1 and b = 2"), unknown) is False
    assert holds(parse_where("a = 1 or b = 1"), unknown) is True
    assert holds(parse_where("a in (1, 2)"), unknown) is None
    assert holds(parse_where("a is null"), unknown) is True


@pytest.mark.parametrize("row", [{"b": 1}, {"a": "1"}, {"a": True}])
def test_a_row_that_cannot_be_compared_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(InvalidFilter):
        holds(parse_where("a = 1"), row)


def test_the_columns_of_a_filter() -> None:
    tree = parse_where("a = b and not c is null or d in (1)")
    assert columns_of(tree) == {"a", "b", "c", "d"}
