"""`.ci/run` runs all tests, and once more what failed; more than two that pass only then fail the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

MAKEFILE = f"""
check:
\t@echo checked
test:
\t@PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 '{sys.executable}' -m pytest -q $(ARGS)
"""
TESTS = """
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", range({unstable}))
def test_unstable(number):
    seen = Path(f"seen{{number}}")
    if not seen.exists():
        seen.touch()
        raise AssertionError


@pytest.mark.parametrize("number", range({broken}))
def test_broken(number):
    raise AssertionError


def test_sound(request):
    assert request.config.getoption("--long")
"""
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--long", action="store_true")
"""

OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS", "WORKERS")
"""What `make test ARGS=...` passes to the make that it starts: its own arguments are not for that one."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in (".ci/run", "tools/ci_tests.py"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nexec '{sys.executable}' \"$@\"\n")
    python.chmod(0o755)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    return tmp_path


def run(project: Path, *, unstable: int = 0, broken: int = 0) -> tuple[int, list[str]]:
    (project / "test_it.py").write_text(TESTS.format(unstable=unstable, broken=broken))
    env = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    done = subprocess.run([project / ".ci" / "run"], capture_output=True, text=True, check=False, env=env)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def names(count: int) -> str:
    return ", ".join(f"test_it.py::test_unstable[{number}]" for number in range(count))


def test_a_run_with_long_tests_and_without_failures_ends_with_the_summary_of_pytest(project: Path) -> None:
    status, said = run(project)
    assert status == 0
    assert said[0] == "checked"
    assert said[-1].startswith("1 passed")


def test_two_tests_that_pass_only_when_run_again_are_named_and_accepted(project: Path) -> None:
    status, said = run(project, unstable=2)
    assert status == 0
    assert any(line.startswith("2 failed, 1 passed") for line in said)
    assert said[-2].startswith("2 passed")
    assert said[-1] == f"Passed only when run again, so unstable (2 at most): {names(2)}"


def test_three_tests_that_pass_only_when_run_again_fail_the_run(project: Path) -> None:
    status, said = run(project, unstable=3)
    assert status == 1
    assert said[-2].startswith("3 passed")
    assert said[-1].endswith(names(3))


def test_a_test_that_fails_again_fails_the_run_and_the_unstable_one_is_named_all_the_same(project: Path) -> None:
    status, said = run(project, unstable=1, broken=1)
    assert status == 1
    assert said[-2].startswith("1 failed, 1 passed")
    assert said[-1].endswith(f": {names(1)}")


def test_a_run_that_fails_without_a_failed_test_is_not_repeated(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\naddopts = --there-is-no-such-option\n")
    status, said = run(project)
    assert status == 1
    assert not any("run again" in line for line in said)


def test_what_an_earlier_run_left_behind_is_not_taken_for_unstable(project: Path) -> None:
    assert run(project, broken=1)[0] == 1
    status, said = run(project)
    assert (status, said[-1].startswith("1 passed")) == (0, True)
