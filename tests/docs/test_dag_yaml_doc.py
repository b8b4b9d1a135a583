"""`docs/reference/dag_yaml.md` explains every field of the DAG language, no unknown field, no wrong default."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.support import ROOT
from tracelake.domain.dag.fields import FIELDS, SHARED
from tracelake.domain.dag.model import Job

DOC = (ROOT / "docs" / "reference" / "dag_yaml.md").read_text(encoding="utf-8")
TITLES = {"dag": "The file", "job": "Jobs"}


def section(title: str) -> str:
    _, _, rest = DOC.partition(f"\n## {title}\n")
    assert rest, f"docs/reference/dag_yaml.md has no section {title}"
    return rest.partition("\n## ")[0]


@pytest.mark.parametrize("kind", FIELDS)
def test_every_field_is_explained_once_where_it_belongs(kind: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .* \| .+ \|$", section(TITLES.get(kind, f"`{kind}`")), re.MULTILINE)
    expected = set(FIELDS[kind]) - (set(SHARED) if kind == "job" else set())
    assert sorted(rows) == sorted(expected)


def test_every_field_of_a_job_in_the_model_is_a_field_of_the_language() -> None:
    language = set(FIELDS["job"])
    model = {field.name for field in dataclasses.fields(Job)}
    in_seconds = {name for name in model if name not in language and name.removesuffix("_seconds") in language}
    assert model - in_seconds <= language
    assert language <= model | {name.removesuffix("_seconds") for name in in_seconds}


def test_the_defaults_it_names_are_the_defaults() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(Job)}
    for name in ("max_attempts", "heartbeat_timeout_seconds"):
        assert re.search(rf"^\| `{name}` \| [^|]+ \| `{defaults[name]}` \|", section("`defaults`"), re.MULTILINE)
