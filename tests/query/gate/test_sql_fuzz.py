"""Queries composed of parts of hostile ones read nothing outside the granted view.

`--sql-examples N` makes it run longer; it is short by default.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlglot import exp

from tests.support.cases.hostile_sql import ATTACKS, ONLY_THE_GATE
from tracelake.domain.sql.functions import FUNCTIONS
from tracelake.domain.sql.gate import check_sql, table_names
from tracelake.errors import InvalidSql
from tracelake.spark.plan_check import checked_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "/etc/hostname"
SEEDS = sorted(
    {text.format(file=SECRET, granted="granted", other="other") for text in ATTACKS.values()}
    | {text for text in ONLY_THE_GATE.values() if len(text) < 500}
)
GOOD = [
    "SELECT id FROM granted",
    "SELECT count(*) AS n, max(id) AS m FROM granted GROUP BY id % 2 HAVING count(*) > 0",
    "WITH a AS (SELECT id FROM granted) SELECT * FROM a JOIN granted USING (id)",
    "SELECT explode(array(id, 1)) AS x FROM granted ORDER BY x",
]
FRAMES = [
    "{a}",
    "SELECT * FROM ({a}) AS q",
    "SELECT ({a}) AS x FROM granted",
    "WITH w AS ({a}) SELECT * FROM w",
    "WITH granted2 AS ({a}), v AS ({b}) SELECT * FROM v, granted2",
    "{a} UNION ALL {b}",
    "SELECT id FROM granted WHERE id IN ({a}) OR EXISTS ({b})",
    "SELECT {f}({a}) AS x FROM granted",
    "SELECT {f}(id, 'x', (SELECT 1)) AS x FROM granted",
    "/* {a} */ {b}",
    "{a} -- {b}",
    "{a} ; {b}",
]
texts = st.sampled_from(SEEDS + GOOD)
words = st.sampled_from(sorted({word for text in SEEDS + GOOD for word in text.split()} | set(FUNCTIONS)))
shuffled = st.lists(words, min_size=1, max_size=14).map(" ".join)
whole = st.builds(
    lambda frame, a, b, f: frame.replace("{a}", a).replace("{b}", b).replace("{f}", f),
    st.sampled_from(FRAMES),
    texts | shuffled,
    texts,
    st.sampled_from([*sorted(FUNCTIONS), "reflect", "java_method", "input_file_name", "current_user"]),
)
queries = whole | shuffled


@pytest.fixture(scope="module")
def examples(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--sql-examples"))


def test_the_sql_gate_raises_its_own_error_or_accepts_a_query_of_the_granted_view_only(examples: int) -> None:
    @settings(max_examples=examples * 5, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(queries)
    def holds(text: str) -> None:
        try:
            table_names(text)
            checked = check_sql(text, {"granted"}, deterministic=False)
        except InvalidSql:
            return
        assert checked.tables <= {"granted"}
        ctes = {cte.alias.casefold() for cte in checked.tree.find_all(exp.CTE)}
        tables = {table.name.casefold() for table in checked.tree.find_all(exp.Table)}
        assert tables <= ctes | {"granted"}
        assert not any(table.args.get("db") for table in checked.tree.find_all(exp.Table))

    holds()


def test_without_the_sql_gate_the_plan_check_accepts_no_query_that_reads_a_file(
    examples: int, spark: SparkSession
) -> None:
    from pyspark.errors import PySparkException

    session = spark.newSession()
    session.range(3).createOrReplaceTempView("granted")
    session.read.text(SECRET).createOrReplaceTempView("other")

    # The same queries each time: one that fills the memory of the shared Spark would fail the tests behind it too.
    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    @given(queries)
    def holds(text: str) -> None:
        try:
            read = checked_frame(session, text, frozenset({"granted"})).inputFiles()
        except (InvalidSql, PySparkException):  # the check refuses it, or Spark while it plans
            return
        assert not read

    holds()
    assert {table.name for table in session.catalog.listTables()} == {"granted", "other"}
    assert not Path(f"{SECRET}_out").exists()
