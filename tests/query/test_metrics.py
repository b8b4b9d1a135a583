"""The Query service counts what it does: by caller and outcome, never by anything that a caller chose."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.query.house import ROWS, House
from tests.walk.walking import TOKEN

pytestmark = pytest.mark.anyio


async def told(house: House) -> dict[tuple[str, str], float]:
    """Of each metric, by its name and the values of its labels."""
    answer = await house.query_internal.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    return {
        (sample.name, " ".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_questions_are_counted_by_asker_and_outcome_with_their_rows_bytes_and_seconds(house: House) -> None:
    await house.rows("reader", "SELECT 1 AS x")
    before = await told(house)
    assert len(await house.rows("reader", "SELECT value FROM orders")) == ROWS
    await house.refused("reader", "SELECT a_telling_name FROM orders")
    await house.refused("reader", "SELECT 1 / (value - value) AS x FROM orders")
    after = await told(house)
    for name, labels, more in (
        ("trace_queries_total", "user answered", 1),
        ("trace_queries_total", "user refused", 2),
        ("trace_query_seconds_count", "user", 3),
        ("trace_query_rows_total", "", ROWS),
        ("trace_query_bytes_total", "", ROWS * 8),
    ):
        assert after[name, labels] - before.get((name, labels), 0) == more, name
    assert "telling" not in str(after)


async def test_what_runs_waits_and_is_kept_is_told(house: House) -> None:
    await house.rows("reader", "SELECT 1 AS x")
    now = await told(house)
    assert now["trace_queries_in_hand", "waiting"] == 0
    assert now["trace_queries_in_hand", "running"] == 0
    assert now["trace_query_sessions", "kept"] == house.spark.pool.kept >= 1
    assert ("trace_query_sessions", "fresh") in now
    assert now["trace_query_stuck_total", ""] == 0
