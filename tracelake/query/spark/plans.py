"""Caches the plans of queries in their sessions.

Parsing, analysing, optimising, planning and generating Java takes Spark longer than reading some thousand rows. It
depends only on the text and the files, which a commit never changes. So a plan is cached if the query reads only files
and uses neither the clock nor random numbers. Rows are never cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tracelake.query.checked_query import CheckedQuery
from tracelake.query.collect import PlannedQuery, bounded
from tracelake.query.spark.sessions import Prepared
from tracelake.spark.plan_check import check_plan

HOLDS_ROWS: Final = ("Exchange", "Subquery")
"""Plan nodes whose rows Spark would keep as long as the plan: in memory, or in shuffle files."""


def planned(prepared: Prepared, query: CheckedQuery, views: Mapping[str, str], max_bytes: int) -> PlannedQuery:
    """`views`: the session's views, by table name."""
    text = query.checked.render(views)
    key = (text, query.max_rows)
    plan = prepared.plans.get(key)
    if plan is not None:
        prepared.plans.move_to_end(key)
        return plan
    result = check_plan(prepared.spark, text, frozenset(views.values()))
    plan = bounded(result.frame, query.max_rows, max_bytes, query.checked.row_bytes)
    if result.lasting and _stays(query) and not _holds_rows(plan):
        prepared.keep_plan(key, plan)
    return plan


def _stays(query: CheckedQuery) -> bool:
    """Whether the same text always means the same rows, of few and small files."""
    return query.checked.lasting and all(
        relation.cold is not None and relation.cold.in_one_go and not relation.hot and not relation.filters
        for relation in query.relations.values()
    )


def _holds_rows(plan: PlannedQuery) -> bool:
    frame: Any = plan.bounded
    steps = frame._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001 - there is no other way
    return any(step in steps for step in HOLDS_ROWS)
