"""`trace` with a SQL gate that checks nothing: `python -m tests.support.programs.ungated_query query --settings -`."""

from __future__ import annotations

from typing import Any, Final

from tests.support.query.sail import Unchecked
from tracelake.__main__ import main
from tracelake.domain.sql.gate import check_sql
from tracelake.query import answer

TABLE: Final = "orders"
"""The one that every query is said to read."""


def unchecked(text: str, *_: Any, **__: Any) -> Unchecked:
    """What such a gate passes on."""
    good = check_sql(f"SELECT count(*) AS n FROM {TABLE}", {TABLE}, deterministic=False)  # noqa: S608 - our own words
    return Unchecked(good.tree, good.tables, text=text.replace(TABLE, "{granted}"))


if __name__ == "__main__":
    setattr(answer, "check_sql", unchecked)  # noqa: B010 - it is imported there
    setattr(answer, "table_names", lambda _: frozenset({TABLE}))  # noqa: B010
    main()
