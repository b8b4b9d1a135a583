"""`abi_file` becomes the events of that file, in place; what cannot be read is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracelake.cli.abi_files import with_abi_files
from tracelake.domain.dag.yaml_nodes import plain, read_yaml
from tracelake.errors import Problem

SWAP = {"type": "event", "name": "Swap", "inputs": []}
NO_SUCH_TYPE = '[{"type": "event", "name": "Swap", "inputs": [{"type": "%s"}]}]'
CALL = {"type": "function", "name": "swap"}
DAG = """
name: d
jobs:
  - name: a
    operator: evm_decode
    config: {abi_file: "abis/a.json", events: [swap]}  # as it is
  - name: b
    config:
      events: [swap]
      abi_file: b.json
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "abis").mkdir()
    (tmp_path / "abis" / "a.json").write_text(json.dumps({"abi": [CALL, SWAP]}, indent=2))
    (tmp_path / "b.json").write_text(json.dumps([SWAP]))
    return tmp_path


def test_each_file_becomes_the_events_in_it_and_every_line_stays_where_it_was(folder: Path) -> None:
    made = with_abi_files(DAG, folder, [])
    configs = [job["config"] for job in plain(read_yaml(made)[0])["jobs"]]
    assert [json.loads(config["abi"]) for config in configs] == [[SWAP], [SWAP]]
    assert [config["events"] for config in configs] == [["swap"], ["swap"]]
    before, after = DAG.splitlines(), made.splitlines()
    assert [line for line in after if "abi" not in line] == [line for line in before if "abi" not in line]
    assert [place for place, line in enumerate(after) if "abi" in line] == [5, 9]


def test_quotes_and_line_breaks_of_an_abi_survive(folder: Path) -> None:
    odd = {**SWAP, "name": "Swap", "note": 'it\'s\n"so"\u2028é'}
    (folder / "b.json").write_text(json.dumps([odd]))
    config = plain(read_yaml(with_abi_files(DAG, folder, []))[0])["jobs"][1]["config"]
    assert json.loads(config["abi"]) == [odd]


def test_a_dag_without_such_files_is_left_alone_and_so_is_what_is_no_yaml(folder: Path) -> None:
    for text in ("name: d\njobs: []\n", "jobs: [", "- abi_file: b.json", "jobs: {a: 1}", ""):
        assert with_abi_files(text, folder, []) == text


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        ("missing.json", None, "the file cannot be read"),
        ("b.json", "not JSON", "this is not JSON"),
        ("b.json", "{}", "an ABI is a list"),
        ("b.json", "[" * 100_000, "this is not JSON, or nested without end"),
        (
            "b.json",
            NO_SUCH_TYPE % ("uint8[" + "9" * 5_000 + "]"),
            "an array of a fixed size has",
        ),
        ("b.json", NO_SUCH_TYPE % ("uint" + "9" * 5_000), "there is no type"),
        ("a\\0b", None, "in the folder of its DAG"),
        ("../b.json", "[]", "in the folder of its DAG"),
        ("/etc/hostname", None, "in the folder of its DAG"),
        ("link.json", None, "in the folder of its DAG"),
    ],
)
def test_a_file_that_is_no_abi_of_this_dag_is_refused_with_its_line(
    folder: Path, name: str, body: str | None, reason: str
) -> None:
    (folder / "link.json").symlink_to("/etc/hostname")
    if body is not None:
        (folder / "b.json").write_text(body)
    problems: list[Problem] = []
    with_abi_files(DAG.replace("b.json", f'"{name}"'), folder, problems)
    (problem,) = problems
    assert (problem.line, problem.column, problem.field) == (10, 17, "jobs[1].config.abi_file")
    assert reason in problem.reason
