"""`make test` leaves out the tests marked `long`; with `--long`, and where their path is given, they run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

CONFTEST = """
from tests.support.schedule import add_long_option as pytest_addoption
from tests.support.schedule import leave_out_long_tests as pytest_collection_modifyitems
"""
INI = """
[pytest]
testpaths = proofs
markers = long: takes long
"""
TESTS = """
import pytest


@pytest.mark.long
def test_long():
    pass


def test_short():
    pass
"""


@pytest.mark.parametrize(
    ("given", "summary"),
    [
        ([], "1 passed, 1 deselected"),
        (["--long"], "2 passed"),
        (["proofs/test_it.py"], "2 passed"),
        (["-n", "2"], "1 passed"),
        (["-n", "2", "--long"], "2 passed"),
    ],
)
def test_a_test_marked_long_runs_only_if_it_is_asked_for(tmp_path: Path, given: list[str], summary: str) -> None:
    for name, text in {"conftest.py": CONFTEST, "pytest.ini": INI, "proofs/test_it.py": TESTS}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist", *given],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{summary} in"), done.stdout
