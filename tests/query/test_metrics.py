"""The Query service counts queries by caller and outcome, never by a value that a caller chose."""

from __future__ import annotations

import pytest

from tests.support.systems.query import ROWS, QuerySystem

pytestmark = pytest.mark.anyio


async def test_queries_are_counted_by_caller_and_outcome_with_rows_bytes_and_seconds(
    system: QuerySystem,
) -> None:
    await system.rows("reader", "SELECT 1 AS x")
    before = await system.counters()
    assert len(await system.rows("reader", "SELECT value FROM orders")) == ROWS
    await system.refused("reader", "SELECT a_telling_name FROM orders")
    await system.refused("reader", "SELECT 1 / (value - value) AS x FROM orders")
    after = await system.counters()
    for name, labels, more in (
        ("trace_queries_total", "user answered", 1),
        ("trace_queries_total", "user refused", 2),
        ("trace_query_seconds_count", "user", 3),
        ("trace_query_rows_total", "", ROWS),
        ("trace_query_bytes_total", "", ROWS * 8),
    ):
        assert after[name, labels] - before.get((name, labels), 0) == more, name
    assert "telling" not in str(after)


async def test_running_and_waiting_queries_and_sessions_are_metrics(system: QuerySystem) -> None:
    await system.rows("reader", "SELECT 1 AS x")
    now = await system.counters()
    assert now["trace_queries_in_progress", "waiting"] == 0
    assert now["trace_queries_in_progress", "running"] == 0
    assert now["trace_query_sessions", "kept"] == system.spark.pool.kept >= 1
    assert ("trace_query_sessions", "fresh") in now
    assert now["trace_query_stuck_total", ""] == 0
