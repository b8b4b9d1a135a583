"""The order of the tests names files that there are, and those that share a Spark session run together."""

from __future__ import annotations

from pathlib import Path

from tests.support.schedule import SHARED_SPARK, SLOWEST, UNITS

ROOT = Path(__file__).parents[2]
ALONE = ("tests/runner/",)
"""Uses the session for a moment only: most of its time goes by in other processes."""


def test_every_file_and_folder_that_is_named_is_there() -> None:
    named = [place for places in UNITS.values() for place in places] + [unit for unit in SLOWEST if unit not in UNITS]
    assert [place for place in named if not (ROOT / place).exists()] == []


def test_tests_that_share_the_spark_session_are_in_a_unit_of_several_files() -> None:
    users = [path for path in (ROOT / "tests").rglob("*.py") if "shared_session()" in path.read_text()]
    users = [path for path in users if path != ROOT / "tests/support/spark/session.py" and path != Path(__file__)]
    together = (*SHARED_SPARK, *UNITS["chain walk"], *ALONE)
    assert len(users) > len(SHARED_SPARK) // 2
    assert [str(path.relative_to(ROOT)) for path in users if not str(path.relative_to(ROOT)).startswith(together)] == []
