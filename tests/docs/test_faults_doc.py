"""Every crash point is in the page that explains how to arm one, and no other is."""

from __future__ import annotations

import re
from pathlib import Path

from tools.write_docs import crash_points_page
from tracelake.domain.crash_points import POINTS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "crash_points.md"


def test_the_page_lists_every_crash_point_and_no_other() -> None:
    table = PAGE.read_text().partition("| where | points |")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+\.\w+)`", table) == list(POINTS)


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == crash_points_page(), "run `make docs`"
