"""Queries with huge results are refused by their text; those that pass do not fail concurrent queries.

`--bomb-examples N` generates more of them, `--bomb-seed` others.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.support.cases.analyst_queries import quick_session
from tests.support.cases.sql_bombs import BOMBS, FINE, made_up
from tests.support.systems.query import ROWS, QuerySystem
from tracelake.domain.sql.gate import check_sql
from tracelake.spark.plan_check import select

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(3600)]
COUNT = "SELECT count(*) AS n FROM orders"
SECONDS = 20


@pytest.mark.parametrize("case", BOMBS)
async def test_a_bomb_is_refused_by_its_text(case: str, system: QuerySystem) -> None:
    answer = await system.ask("reader", BOMBS[case].replace("granted", "orders"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_sql"), answer.text
    assert answer.json()["error"]["hint"] or "nested too deeply" in answer.text, answer.text


async def test_a_setting_limits_the_size_of_a_value(system: QuerySystem) -> None:
    most = system.settings.query.max_value_bytes
    assert await system.rows("reader", f"SELECT length(repeat('x', {most - 100})) AS n") == [[most - 100]]
    answer = await system.ask("reader", f"SELECT length(\n repeat('x', {most + 1})) AS n")
    error = answer.json()["error"]
    assert (answer.status_code, error["where"]) == (400, "line 2, column 2")
    assert "repeat()" in error["message"]
    assert f"{most:,} bytes" in error["message"]


def test_ordinary_queries_similar_to_bombs_are_accepted_and_analysed_by_spark(spark: SparkSession) -> None:
    session = quick_session(spark)
    rows = session.sql(
        "SELECT * FROM VALUES (1L, '0xab', array('a', 'b')), (2L, '0xcd', array('c')) AS g (id, name, a)"
    )
    for title, query in FINE.items():
        checked = check_sql(query, {"granted"}, deterministic=False)
        assert select(session, checked, {"granted": rows}).columns, title


async def test_a_random_bomb_is_refused_or_ends_and_a_concurrent_query_is_answered(
    system: QuerySystem, request: pytest.FixtureRequest
) -> None:
    seed, examples = (int(request.config.getoption(name)) for name in ("--bomb-seed", "--bomb-examples"))
    random = Random(seed)  # noqa: S311 - made up again from its seed
    verdicts = {"refused": 0, "ended": 0}
    for number in range(examples):
        query = made_up(random)
        about = f"--bomb-seed {seed}, example {number}: {query}"
        answer, beside = await asyncio.gather(
            system.ask("reader", query, timeout_seconds=SECONDS), system.ask("clerk", COUNT)
        )
        assert answer.status_code in {200, 400, 422, 504}, (about, answer.text)
        assert (beside.status_code, beside.json().get("rows")) == (200, [[ROWS]]), (about, beside.text)
        verdicts["refused" if answer.status_code == 400 else "ended"] += 1
    assert all(verdicts.values()), "some are refused and some run, or nothing is shown"
