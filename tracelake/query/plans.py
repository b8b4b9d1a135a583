"""A query's plan: made and looked at once, and kept in its session for the next time the same is asked.

What Spark does before the first row (reading, analysing, optimising, planning, writing Java) takes longer than reading
some thousand rows. None of it depends on anything but the text and the files, which a commit never changes. So it is
kept where that holds: files alone, no clock, no chance. Rows are never kept; they are read anew each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tracelake.query.checked_query import CheckedQuery
from tracelake.query.collect import Plan, bounded
from tracelake.query.sessions import Prepared
from tracelake.spark.plan_check import looked_at

HOLDS_ROWS: Final = ("Exchange", "Subquery")
"""Steps whose rows Spark would keep as long as the plan: in memory, or in files of a shuffle."""


def planned(prepared: Prepared, query: CheckedQuery, views: Mapping[str, str], max_bytes: int) -> Plan:
    """`views` are those of the session, by the names of the tables."""
    text = query.checked.render(views)
    key = (text, query.max_rows)
    found = prepared.plans.get(key)
    if found is not None:
        prepared.plans.move_to_end(key)
        return found
    looked = looked_at(prepared.spark, text, frozenset(views.values()))
    plan = bounded(looked.frame, query.max_rows, max_bytes, query.checked.row_bytes)
    if looked.lasting and _stays(query) and not _holds_rows(plan):
        prepared.keep_plan(key, plan)
    return plan


def _stays(query: CheckedQuery) -> bool:
    """Whether the same text means the same rows, of few and small files."""
    return query.checked.lasting and all(
        relation.cold is not None and relation.cold.in_one_go and not relation.hot and not relation.filters
        for relation in query.relations.values()
    )


def _holds_rows(plan: Plan) -> bool:
    frame: Any = plan.bounded
    steps = frame._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001 - there is no other way
    return any(step in steps for step in HOLDS_ROWS)
