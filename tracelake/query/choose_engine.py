"""Chooses the engine of each query: Sail where it is known to give the same rows, Spark for everything else."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from tracelake.errors import QueryFailed
from tracelake.query.checked_query import CheckedQuery
from tracelake.query.engine import CannotRun, InProgress, QueryEngine, QueryResult, query_timeout
from tracelake.runtime.metrics import Metrics
from tracelake.settings import QuerySettings

MIB: Final = 1024 * 1024


class ChosenEngine:
    """Runs each query on one of two engines, by `query.engine`."""

    def __init__(self, spark: QueryEngine, sail: QueryEngine, settings: QuerySettings, metrics: Metrics) -> None:
        self._spark = spark
        self._sail = sail
        self._pinned = None if settings.engine == "auto" else settings.engine
        self._scan_bytes = settings.sail_scan_mb * MIB
        self._metrics = metrics

    async def run(self, query: CheckedQuery) -> QueryResult:
        began = time.monotonic()
        try:
            result = await self._run_on_sail(query)
        except CannotRun as other:
            reason = other.reason
        else:
            self._metrics.query_runs.labels(str(query.caller.org_id), "sail", "same").inc()
            return result
        if self._pinned == "sail":
            raise QueryFailed(f"Sail does not run it ({reason})", hint="set query.engine to auto, and Spark does")
        self._metrics.query_runs.labels(str(query.caller.org_id), "spark", reason).inc()
        return await self._spark.run(_rest_of(query, time.monotonic() - began))

    def in_progress(self, state: InProgress) -> int:
        return self._spark.in_progress(state) + self._sail.in_progress(state)

    async def _run_on_sail(self, query: CheckedQuery) -> QueryResult:
        """What Sail should not run, because Spark is pinned or there is much of it, does not start there."""
        if self._pinned == "spark":
            raise CannotRun("pinned")
        if query.export is not None:
            raise CannotRun("export")
        if sum(relation.cold.bytes for relation in query.relations.values() if relation.cold) > self._scan_bytes:
            raise CannotRun("large")
        return await self._sail.run(query)


def _rest_of(query: CheckedQuery, passed: float) -> CheckedQuery:
    """Return the query with the time that is left; both engines together get no more than one."""
    within = None if query.answer_within is None else query.answer_within - passed
    if query.seconds <= passed or (within is not None and within <= 0):
        raise query_timeout(query)
    return replace(query, seconds=query.seconds - passed, answer_within=within)
