"""A DAG that names its code by a folder: what is deployed names it by content."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tracelake.cli.udf_folders import with_udf_folders
from tracelake.domain.dag.yaml_nodes import plain, read_yaml
from tracelake.errors import Problem
from tracelake.udf.pack import pack

DAG = """name: d
jobs:
  - name: a
    operator: udf
    udf: {folder: Large-Ones, handler: main.handler}  # its code
    inputs: [{from: {dataset: x}}]
  - {name: b, operator: udf, udf: {folder: deep/other}, inputs: [{from: {job: a}}]}
"""


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    for name in ("Large-Ones", "deep/other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "main.py").write_text(f"def handler(event, context):\n    return {name!r}\n")
    return tmp_path


def test_a_folder_becomes_its_bundle_and_every_other_character_stays(beside: Path) -> None:
    text, bundles = with_udf_folders(DAG, beside, [])
    hashes = [hashlib.sha256(pack(beside / name).archive).hexdigest() for name in ("Large-Ones", "deep/other")]
    assert [bundle.name for bundle in bundles] == ["large_ones", "other"]
    assert [hashlib.sha256(bundle.packed.archive).hexdigest() for bundle in bundles] == hashes
    jobs = plain(read_yaml(text)[0])["jobs"]
    assert jobs[0]["udf"] == {"bundle": "large_ones", "sha256": hashes[0], "handler": "main.handler"}
    assert jobs[1]["udf"] == {"bundle": "other", "sha256": hashes[1]}
    assert text.count("\n") == DAG.count("\n")
    assert "# its code" in text


def test_a_dag_without_folders_or_that_is_no_yaml_stays_as_it_is(beside: Path) -> None:
    for text in ("name: [", "jobs: 3", "jobs: [{udf: {bundle: a, sha256: b}}]", ""):
        assert with_udf_folders(text, beside, []) == (text, [])


@pytest.mark.parametrize(
    ("udf", "output"),
    [
        ("{folder: missing}", "no such folder"),
        ("{folder: ../elsewhere}", "in the folder of its DAG"),
        ("{folder: /etc}", "in the folder of its DAG"),
        ("{folder: Large-Ones, sha256: abc}", "without `bundle`"),
        ("\n      folder: Large-Ones", "on one line"),
        ("{folder: Large-Ones, handler: nothing.here}", "nothing"),
    ],
)
def test_a_folder_that_cannot_be_a_bundle_is_refused_where_it_is_named(beside: Path, udf: str, output: str) -> None:
    problems: list[Problem] = []
    with_udf_folders(f"jobs:\n  - name: a\n    udf: {udf}\n", beside, problems)
    (problem,) = problems
    assert problem.field == "jobs[0].udf.folder"
    assert problem.line == 3 + udf.count("\n")
    assert output in problem.reason
