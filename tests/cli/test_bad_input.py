"""Input that no verb can use: a refusal with its place, never a stack trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import SECONDS

DEEP = "a: " + "[" * 5000 + "]" * 5000 + "\n"


def trace(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tracelake", *words]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=SECONDS)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_dag_that_nests_without_end_is_refused_where_it_does(tmp_path: Path, form: tuple[str, ...]) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text(DEEP)
    output = trace("dag", "validate", str(file), *form)
    assert (output.returncode, "Traceback" in output.stderr) == (1, False), output.stderr[-400:]
    assert "deep" in output.stdout + output.stderr


def test_a_file_that_is_missing_is_named_before_anything_is_asked_of_a_system(tmp_path: Path) -> None:
    output = trace("dag", "deploy", str(tmp_path / "nope.yaml"), "--home", str(tmp_path / "home"))
    assert output.returncode == 1
    assert "nope.yaml" in output.stderr
    assert "no Trace runs" not in output.stderr


@pytest.mark.parametrize("document", ["[]", "3", '"home"', "null"])
def test_settings_on_standard_input_are_an_object(document: str) -> None:
    output = trace("scheduler", "--settings", "-", stdin=document)
    assert (output.returncode, "Traceback" in output.stderr) == (1, False), output.stderr
    assert "JSON object" in output.stderr


@pytest.mark.parametrize("process", ["scheduler", "sink", "query"])
def test_settings_are_read_from_nowhere_but_standard_input(process: str) -> None:
    output = trace(process, "--settings", "settings.json")
    assert (output.returncode, "Traceback" in output.stderr) == (1, False), output.stderr
    assert "--settings -" in output.stderr
