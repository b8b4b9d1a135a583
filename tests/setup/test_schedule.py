"""The order of the tests names files that there are, and those that share a Spark session run together.

And a run goes on when several of its processes die.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT
from tests.support.schedule import SHARED_SPARK, SLOWEST, UNITS
from tests.support.waiting import SECONDS

SHUFFLED = """
import os

from tests.support.schedule import shuffle

def pytest_collection_modifyitems(items):
    if os.environ["SEED"]:
        shuffle(items, int(os.environ["SEED"]))
"""
ORDERED = """
import os
from pathlib import Path

from tests.support.schedule import SlowestFirst
from tests.support.waiting import wait_until

HERE = Path(__file__).parent
NEXT = {"gw2": "gw3.begun", "gw3": "ran"}

def pytest_xdist_make_scheduler(config, log):
    return SlowestFirst(config, log)

def pytest_collection(session):
    # The first of the next two is given tests while the second is still collecting.
    if (worker := os.environ.get("PYTEST_XDIST_WORKER")) in NEXT:
        (HERE / f"{worker}.begun").touch()
        wait_until((HERE / NEXT[worker]).exists, "the other one is so far")
"""
DEADLY = """
import os
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

HERE = Path(__file__)

def test_dies():
    HERE.with_suffix(".died").touch()
    wait_until(lambda: len(list(HERE.parent.glob("*.died"))) == 2, "both processes are here")
    os._exit(1)

@pytest.mark.parametrize("number", range(2))  # a process begins its last test when it knows of no other
def test_after(number):
    (HERE.parent / "ran").touch()
"""


def test_every_file_and_folder_that_is_named_is_there() -> None:
    named = [place for places in UNITS.values() for place in places] + [unit for unit in SLOWEST if unit not in UNITS]
    assert [place for place in named if not (ROOT / place).exists()] == []


def test_tests_that_share_the_spark_session_are_in_a_unit_of_several_files() -> None:
    users = [path for path in (ROOT / "tests").rglob("*.py") if "shared_session()" in path.read_text()]
    users = [path for path in users if path != ROOT / "tests/support/spark/session.py" and path != Path(__file__)]
    together = (*SHARED_SPARK, *UNITS["chain walk"], *UNITS["runner"])
    assert len(users) > len(SHARED_SPARK) // 2
    assert [str(path.relative_to(ROOT)) for path in users if not str(path.relative_to(ROOT)).startswith(together)] == []


def test_files_and_their_tests_can_be_run_in_another_order_that_a_seed_decides(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SHUFFLED)
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text("".join(f"def test_{number}(): ...\n" for number in range(5)))
    written, first, again, other = (collected(tmp_path, seed) for seed in ("", "1", "1", "2"))
    assert first == again
    assert len({tuple(order) for order in (written, first, other)}) == 3
    assert sorted(first) == sorted(other) == sorted(written)
    files = [test.partition("::")[0] for test in first]
    assert len([file for file, before in zip(files, ["", *files], strict=False) if file != before]) == 4, "one by one"


def collected(folder: Path, seed: str) -> list[str]:
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SEED": seed}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=SECONDS)
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_when_two_processes_die_their_other_tests_are_run_and_only_two_fail(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(ORDERED)
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(DEADLY)
    argv = [sys.executable, "-m", "pytest", "-n", "2", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("PYTEST_XDIST_WORKER", None)  # of the process that runs this test
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert "2 failed, 4 passed" in done.stdout, done.stdout + done.stderr
