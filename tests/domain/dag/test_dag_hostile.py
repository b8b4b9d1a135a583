"""Files that are not what they seem: refused with a place, in bounded time, never with a stack trace."""

from __future__ import annotations

import pytest

from tracelake.domain.dag.catalog import Catalog
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.dag.yaml_nodes import MAX_BYTES
from tracelake.errors import InvalidDag, Problem

LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [*{below}, *{below}]\n"
    for below, name in zip("abcdefghijklmnopqrs", "bcdefghijklmnopqrst", strict=True)
)
GOOD = "name: t\njobs: [{name: a, operator: pull, runtime: platform, source: {kind: manual}%s}]\n"


def first(text: str | bytes, catalog: Catalog) -> Problem:
    with pytest.raises(InvalidDag) as refusal:
        parse_dag(text, catalog)
    return refusal.value.problems[0]


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("", "empty", 1, 1),
        ("# only a comment\n", "empty", 1, 1),
        ("---\n...\n", "empty", 2, 1),
        ("just text", "wrong_type", 1, 1),
        ("name: x\n\tjobs: []\n", "tab", 2, 1),
        ("name: x\njobs:\n\t- a\n", "tab", 3, 1),
        ("name: x: y\n", "bad_yaml", 1, 8),
        ("name: [x\n", "bad_yaml", 2, 1),
        ("name: 'x\n", "bad_yaml", 2, 1),
        ("name: @x\n", "bad_yaml", 1, 7),
        ("a: 1\n b: 2\n", "bad_yaml", 2, 3),
        ('name: "\\q"\n', "bad_yaml", 1, 9),
        ("name: x\n---\nname: y\n", "several_documents", 2, 1),
        ("name: x\n...\n---\nname: y\n", "several_documents", 3, 1),
        ("%YAML 1.1\n---\nname: x\n", "yaml_version", 2, 1),
        ("%YAML 3.0\n---\nname: x\n", "bad_yaml", 1, 1),
        ("name: x\x00\n", "bad_character", 1, 8),
        ("na\x07me: x\n", "bad_character", 1, 3),
        ("name: \ud800\n", "bad_character", 1, 7),
        ('name: "\\0"\n', "bad_character", 1, 7),
        ('name: "\\ud800"\n', "bad_character", 1, 7),
        ('name: "\\U00110000"\n', "bad_character", 1, 8),
        (b"name: caf\xe9\n", "not_utf8", 1, 10),
        (b"name: x\njobs: \xff\xfe\n", "not_utf8", 2, 7),
        ("name: x".encode("utf-16"), "not_utf8", 1, 1),
        (LAUGHS, "anchor", 1, 4),
        ("name: &n x\njobs: [*n]\n", "anchor", 1, 7),
        ("name: *nowhere\n", "anchor", 1, 7),
        ("<<: {name: x}\n", "anchor", 1, 1),
        ("a: &a\n  b: *a\n", "anchor", 1, 4),
        ("name: !!python/object/apply:os.system [ls]\n", "tag", 1, 7),
        ("name: !!str x\n", "tag", 1, 7),
        ("name: !secret x\n", "tag", 1, 7),
        ("? [a, b]\n: x\n", "bad_key", 1, 3),
        ("5: x\n", "bad_key", 1, 1),
        ("null: x\n", "bad_key", 1, 1),
        ("name: x\nname: y\n", "duplicate_key", 2, 1),
        ("name: x\n'name': y\n", "duplicate_key", 2, 1),
        ("name: 1" + "0" * 38 + "\n", "bad_number", 1, 7),
        ("name: 0x4b3b4ca85a86c47a098a224000000000\n", "bad_number", 1, 7),
        ("name: " + "9" * 10_000 + "\n", "bad_number", 1, 7),
        ("name: 1e999\n", "bad_number", 1, 7),
        ("name: .nan\n", "bad_number", 1, 7),
        ("name: -.inf\n", "bad_number", 1, 7),
        ("a: " + "[" * 33 + "]" * 33 + "\n", "too_deep", 1, 35),
        ("[" * 200_000, "too_deep", 1, 33),
        ("{a: " * 50_000, "too_deep", 1, 126),
        ("- " * 100_000, "too_deep", 1, 65),
        ("x" * (MAX_BYTES + 1), "too_large", 1, 1),
        (b"\x00" * (MAX_BYTES + 1), "too_large", 1, 1),
        ("é" * (MAX_BYTES // 2 + 1), "too_large", 1, 1),
    ],
)
def test_a_hostile_file_is_refused_at_its_place(
    text: str | bytes, code: str, line: int, column: int, catalog: Catalog
) -> None:
    with pytest.raises(InvalidDag) as refusal:
        parse_dag(text, catalog)
    assert (code, line, column) in {(problem.code, problem.line, problem.column) for problem in refusal.value.problems}


def test_a_refused_value_is_not_complained_about_again(catalog: Catalog) -> None:
    with pytest.raises(InvalidDag) as refusal:
        parse_dag(
            GOOD % ", max_attempts: !!int 3, priority: *p, timeout_seconds: .inf, config: {size: !!int 3}, where: .nan",
            catalog,
        )
    assert [problem.code for problem in refusal.value.problems] == [
        "tag",
        "anchor",
        "bad_number",
        "tag",
        "unknown_field",
        "bad_number",
    ]


def test_a_whole_number_of_38_digits_is_kept_whole(catalog: Catalog) -> None:
    for number in (2**63, -(10**21), 10**38 - 1):
        (job, *_) = parse_dag(GOOD % f", config: {{size: {number}}}", catalog).jobs
        assert job.config == {"size": number}


def test_words_that_older_yaml_made_into_truth_are_text(catalog: Catalog) -> None:
    for word in ("yes", "no", "on", "off"):
        assert parse_dag((GOOD % "").replace("name: t", f"name: {word}"), catalog).name == word


def test_a_date_is_text(catalog: Catalog) -> None:
    dag = parse_dag(GOOD % ", config: {tables: [2025-12-31, 12:30:45, 1_000, 0b1]}", catalog)
    assert dag.jobs[0].config == {"tables": ["2025-12-31", "12:30:45", "1_000", "0b1"]}


@pytest.mark.parametrize("text", ["\ufeff", "%YAML 1.2\n---\n", "--- # here it begins\n", "\r\n"])
def test_what_may_stand_in_front(text: str, catalog: Catalog) -> None:
    assert parse_dag(text + GOOD % "", catalog).name == "t"
    assert parse_dag((text + GOOD % "").encode(), catalog).name == "t"
    assert parse_dag((text + GOOD % "").replace("\n", "\r\n"), catalog).name == "t"


def test_a_refusal_names_no_more_of_the_file_than_it_must(catalog: Catalog) -> None:
    problem = first(GOOD % f", priority: {'s' * 5_000}", catalog)
    assert len(problem.reason) < 200
