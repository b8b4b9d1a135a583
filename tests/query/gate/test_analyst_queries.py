"""Queries of analysts over chain data pass the SQL gate, and Spark runs the checked text. 20 s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.cases.analyst_queries import QUERIES, TABLES, quick_session, tables
from tracelake.domain.sql.gate import check_sql
from tracelake.spark.plan_check import select

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Active only here: what Spark decodes for other tests depends on the settings of the active session."""
    yield quick_session(spark)
    spark.createDataFrame([(1,)], "n int")  # makes its own session the active one


@pytest.fixture(scope="module")
def frames(session: SparkSession) -> dict[str, DataFrame]:
    return tables(session)


def test_the_corpus_has_two_hundred_different_queries() -> None:
    assert len(QUERIES) >= 200
    assert len(set(QUERIES.values())) == len(QUERIES)


@pytest.mark.parametrize("title", QUERIES)
def test_a_query_of_an_analyst_is_accepted_and_runs(
    title: str, session: SparkSession, frames: dict[str, DataFrame]
) -> None:
    checked = check_sql(QUERIES[title], TABLES, deterministic=False)
    assert select(session, checked, frames).limit(100).toArrow().num_columns > 0
    hinted = check_sql(QUERIES[title], TABLES, deterministic=False, bounded=False)  # as a job: hints stay
    if checked.tree != hinted.tree:
        select(session, hinted, frames)


ANSWERS = {
    "SELECT 'it''s' AS a, \"it''s\" AS b, 'a' 'b' AS c": [("it's", "it''s", "ab")],
    "SELECT token, count(*) AS n FROM transfers GROUP BY token QUALIFY row_number() OVER (ORDER BY token) = 1": [
        ("0xa", 20)
    ],
    "SELECT count(*) AS n FROM (SELECT window(block_timestamp, '1 day') AS w FROM transfers GROUP BY 1)": [(1,)],
    "SELECT timestampdiff(SECOND, min(ts), max(ts)) AS s, timestampadd(HOUR, 1, min(ts)) = min(ts) + INTERVAL 1 HOUR"
    " AS t FROM prices": [(19 * 3600, True)],
    "SELECT /*+ BROADCAST(k) */ count(*) AS n FROM transfers t JOIN tokens k ON k.address = t.token": [(40,)],
    "SELECT p.a, p.b FROM (SELECT token, holders FROM daily_volume)"
    " PIVOT (count(holders) FOR token IN ('0xa' AS a, '0xb' AS b)) AS p": [(12, 12)],
    "SELECT trim(LEADING '0' FROM '0070') AS l, position('b' IN 'abc') AS p, substring('abc' FROM 2) AS s,"
    " 1 | 2 << 2 AS b, array(7, 8)[0] AS f": [("70", 2, "bc", 9, 7)],
}


@pytest.mark.parametrize("query", ANSWERS)
def test_the_checked_query_returns_the_rows_of_the_original(
    query: str, session: SparkSession, frames: dict[str, DataFrame]
) -> None:
    for bounded in (True, False):
        rows = select(session, check_sql(query, TABLES, bounded=bounded), frames).collect()
        assert [tuple(row) for row in rows] == ANSWERS[query]
