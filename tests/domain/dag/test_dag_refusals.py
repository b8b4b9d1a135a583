"""Every refusal of a DAG: where exactly, which field, which code, what is suggested. The table is `dag_refusals.txt`.

A case there is: `## name`, a line `code | field | part of the suggestion` (`-` for none), and the YAML. The sign «
stands where the problem is reported and is taken out before reading. YAML that begins indented comes after HEAD.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pydantic import BaseModel

from tracelake.domain.dag.catalog import Catalog, OperatorSpec, checked_by
from tracelake.domain.dag.parse import parse_dag
from tracelake.errors import InvalidDag

HEAD = """name: shop
defaults: {runtime: platform}
jobs:
  - {name: src, operator: pull, source: {kind: manual}, outputs: [orders, items]}
"""


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    code: str
    field: str
    suggestion: str | None


def cases() -> Iterator[Case]:
    table = (Path(__file__).parent / "dag_refusals.txt").read_text(encoding="utf-8")
    for block in table.split("\n## ")[1:]:
        name, expected, body = block.split("\n", 2)
        code, field, suggestion = (None if item == "-" else item for item in expected.split(" | "))
        text = body.split("\n# ")[0]  # the title of the next group
        yield Case(name, (HEAD if text.startswith(" ") else "") + text, code or "", field or "", suggestion)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_one_problem_one_refusal_at_its_place(case: Case, catalog: Catalog) -> None:
    before, _, _ = case.text.partition("«")
    with pytest.raises(InvalidDag) as refusal:
        parse_dag(case.text.replace("«", ""), catalog)
    (problem,) = refusal.value.problems
    assert (problem.code, problem.field) == (case.code, case.field)
    assert (problem.line, problem.column) == (before.count("\n") + 1, len(before) - before.rfind("\n"))
    if case.suggestion is None:
        assert problem.suggestion is None
    else:
        assert case.suggestion in (problem.suggestion or "")


def test_all_problems_are_found_at_once_in_the_order_of_the_file(catalog: Catalog) -> None:
    text = """name: Shop
jobs:
  - name: a
    operator: nope
    runtime: platform
    inputs:
      - from: {job: b}
        where: "x LIKE 'y'"
  - name: b
    operator: sql
    runtime: platform
    update_strategy: append
    inputs: [{from: {job: a}}, {from: {dataset: nowhere}}]
    a: 1
    a: 2
publish:
  x: {job: c}
"""
    with pytest.raises(InvalidDag) as refusal:
        parse_dag(text, catalog)
    found = [(problem.line, problem.code) for problem in refusal.value.problems]
    assert found == [
        (1, "bad_name"),
        (4, "unknown_operator"),
        (7, "cycle"),
        (8, "bad_filter"),
        (12, "missing_unique_key"),
        (13, "unknown_dataset"),
        (14, "unknown_field"),
        (15, "duplicate_key"),
        (17, "unknown_job"),
    ]
    assert refusal.value.code == "invalid_dag"
    assert refusal.value.where == "line 1, column 7"
    assert not refusal.value.retryable
    assert len(refusal.value.as_dict()["problems"]) == len(found)


def test_a_circle_is_shown_as_its_path(catalog: Catalog) -> None:
    case = next(case for case in cases() if case.name == "a circle")
    with pytest.raises(InvalidDag) as refusal:
        parse_dag(case.text.replace("«", ""), catalog)
    assert "b -> c -> d -> b" in refusal.value.message


def test_of_very_many_problems_the_first_hundred_are_shown(catalog: Catalog) -> None:
    jobs = "".join(f"  - {{name: j{i}, operator: nope, inputs: [{{from: {{job: x{i}}}}}]}}\n" for i in range(200))
    with pytest.raises(InvalidDag) as refusal:
        parse_dag(HEAD + jobs, catalog)
    assert len(refusal.value.problems) == 101
    assert refusal.value.problems[-1].code == "too_many_problems"


class Strict(BaseModel):
    size: int
    table: str


@pytest.mark.parametrize(
    ("config", "output"),
    [
        ("{}", ["`size` is required", "`table` is required"]),
        ("[]", ["this is a list, not a map"]),
        ("5", ["this is the number 5, not a map"]),
    ],
)
def test_every_missing_field_of_a_config_is_reported_unless_it_is_no_config(
    config: str, output: list[str], catalog: Catalog
) -> None:
    strict = OperatorSpec(checked_by(Strict), frozenset({"platform"}))
    known = replace(catalog, operators={**catalog.operators, "strict": strict})
    job = f"  - {{name: a, operator: strict, inputs: [{{from: {{job: src, output: orders}}}}], config: {config}}}\n"
    with pytest.raises(InvalidDag) as refusal:
        parse_dag(HEAD + job, known)
    assert [problem.reason for problem in refusal.value.problems] == output
