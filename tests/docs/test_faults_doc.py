"""Every crash point is in the page that explains how to arm one, and no other is."""

from __future__ import annotations

import re

from tests.support import ROOT
from tools.write_docs import crash_points_page
from tracelake.domain.crash_points import POINTS

PAGE = ROOT / "docs" / "reference" / "crash_points.md"


def test_the_page_lists_every_crash_point_and_no_other() -> None:
    table = PAGE.read_text().partition("| where | points |")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+\.\w+)`", table) == list(POINTS)


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == crash_points_page(), "run `make docs`"


def test_the_page_about_faults_names_every_test_of_killed_processes() -> None:
    page = (ROOT / "docs" / "concepts" / "fault_tolerance.md").read_text(encoding="utf-8")
    killed = [path.relative_to(ROOT) for path in (ROOT / "tests" / "faults" / "killed").glob("test_*.py")]
    assert len(killed) > 3
    assert [path for path in killed if f"`{path}`" not in page] == []
