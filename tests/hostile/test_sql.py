"""Every hostile query is refused by the gate; and with the gate off, before it has run, by what Spark made of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cases.hostile_sql import ATTACKS, ONLY_THE_GATE
from tracelake.domain.sql.gate import check_sql
from tracelake.errors import InvalidSql
from tracelake.spark.plan_check import checked_frame, select

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "the contents of a private file"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text(SECRET)
    return path


@pytest.fixture
def granted(spark: SparkSession) -> Iterator[str]:
    spark.range(3).createOrReplaceTempView("granted")
    spark.range(5).createOrReplaceTempView("other")
    yield "granted"
    for name in ("granted", "other"):
        spark.catalog.dropTempView(name)


def filled(query: str, file: Path) -> str:
    return query.format(file=file, granted="granted", other="other")


@pytest.mark.parametrize("case", ATTACKS)
def test_the_gate_refuses(case: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSql) as refused:
        check_sql(filled(ATTACKS[case], tmp_path / "secret.txt"), {"granted"}, deterministic=False)
    assert "secret" not in str(refused.value.as_dict()), "what was asked for is not repeated"
    assert "other" not in refused.value.message.split()


@pytest.mark.parametrize("case", ONLY_THE_GATE)
def test_the_gate_refuses_what_only_it_can(case: str) -> None:
    with pytest.raises(InvalidSql):
        check_sql(ONLY_THE_GATE[case], {"granted"})


@pytest.mark.parametrize("case", ATTACKS)
def test_without_the_gate_the_plan_is_refused_and_nothing_happened(
    case: str, spark: SparkSession, file: Path, granted: str
) -> None:
    from pyspark.errors import AnalysisException, ParseException

    for conf in ("false", "true"):  # the setting that forbids paths as tables is not what we rely on
        spark.conf.set("spark.sql.runSQLOnFiles", conf)
        try:
            with pytest.raises((InvalidSql, AnalysisException, ParseException)) as refused:
                checked_frame(spark, filled(ATTACKS[case], file), frozenset({granted}))
        finally:
            spark.conf.set("spark.sql.runSQLOnFiles", "false")
        assert SECRET not in str(refused.value)
    assert [path.name for path in file.parent.iterdir()] == ["secret.txt"]
    assert {row.tableName for row in spark.sql("SHOW TABLES").collect()} == {"granted", "other"}


def test_a_permitted_query_passes_both_lines(spark: SparkSession) -> None:
    query = """
        WITH few AS (SELECT id, id % 2 AS odd FROM t WHERE id < 6)
        SELECT odd, count(*) AS n, (SELECT max(id) FROM t) AS top, max(id) OVER (ORDER BY odd) AS m
          FROM few WHERE EXISTS (SELECT 1 FROM u WHERE u.id = few.id) GROUP BY odd, id
         UNION ALL SELECT y, 0, 0, 0 FROM u LATERAL VIEW explode(array(7)) e AS y WHERE id IN (SELECT id FROM few)
         ORDER BY 1, 2 LIMIT 3
    """
    checked = check_sql(query, {"t", "u", "not read"})
    assert checked.tables == {"t", "u"}
    rows = select(spark, checked, {"t": spark.range(8), "u": spark.range(4)}).collect()
    assert [tuple(row) for row in rows] == [(0, 1, 7, 2), (0, 1, 7, 2), (1, 1, 7, 3)]
    assert spark.catalog.listTables() == [], "views are gone as soon as the query is analysed"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a.*, b.id AS other FROM t a FULL OUTER JOIN u b ON a.id = b.id",
        "SELECT * EXCEPT (id), id AS renamed FROM t",
        "SELECT id FROM t LEFT SEMI JOIN u USING (id)",
        "SELECT id FROM t LEFT ANTI JOIN u USING (id) INTERSECT SELECT id FROM t EXCEPT SELECT 9",
        "SELECT DISTINCT id % 2 AS odd FROM t ORDER BY odd DESC NULLS LAST LIMIT 2 OFFSET 1",
        "SELECT id % 2 AS odd, count(*) AS n FROM t GROUP BY ALL HAVING count(*) > 1",
        "SELECT id % 2 AS odd, grouping(id % 2) AS g, count(*) AS n FROM t GROUP BY CUBE (id % 2)",
        "SELECT id, count(*) AS n FROM t GROUP BY GROUPING SETS ((id), ())",
        "SELECT sum(id) OVER w AS s, lag(id, 1, 0) OVER w AS l FROM t WINDOW w AS (ORDER BY id)",
        "SELECT transform(array(1, 2), x -> x + 1)[0] AS a, named_struct('k', 1).k AS k, map('x', 1)['x'] AS m FROM t",
        "SELECT aggregate(array(1, 2), 0, (s, x) -> s + x) AS a, filter(array(1, 2), x -> x > 1) AS f FROM t",
        "SELECT CASE WHEN id > 1 THEN 'a' ELSE 'b' END AS c, if(id > 1, 1, 2) AS i, id BETWEEN 1 AND 2 AS b FROM t",
        "SELECT e.n, p.col FROM t LATERAL VIEW explode(sequence(1, 2)) e AS n LATERAL VIEW posexplode(array(1)) p",
        "SELECT a, b FROM VALUES (1, 'x'), (2, 'y') AS v (a, b)",
        "SELECT n FROM (SELECT id FROM t) q (n) WHERE n NOT IN (SELECT id FROM u) OR n = (SELECT max(id) FROM u)",
        "SELECT from_json('{}', 'a int').a AS a, date '2020-01-01' + interval 1 day AS d, X'1F' AS h, 1L AS l FROM t",
        "SELECT count(DISTINCT id) FILTER (WHERE id > 1) AS n, max_by(id, id) AS m, listagg(id) AS l FROM t",
        "SELECT cast(id AS decimal(38,0)) AS d, try_cast('x' AS int) AS i, extract(year FROM now()) AS y FROM t",
        "SELECT id FROM t WHERE cast(id AS string) RLIKE r'\\d' AND id <=> 1 AND 'x' LIKE ANY ('1', '2')",
    ],
)
def test_ordinary_queries_pass_both_checks(spark: SparkSession, query: str) -> None:
    select(
        spark, check_sql(query, {"t", "u"}, deterministic=False), {"t": spark.range(3), "u": spark.range(2)}
    ).collect()


def test_a_refusal_of_spark_names_inputs_as_their_author_does(spark: SparkSession) -> None:
    checked = check_sql("SELECT nope FROM t", {"t"})
    with pytest.raises(InvalidSql, match="nope") as refused:
        select(spark, checked, {"t": spark.range(1)})
    assert "v_" not in refused.value.message
    assert "\n" not in refused.value.message


def test_a_refusal_of_sparks_parser_says_what_it_is(spark: SparkSession) -> None:
    checked = check_sql("SELECT t.id FROM t ASOF JOIN u", {"t", "u"})
    with pytest.raises(InvalidSql, match="PARSE_SYNTAX_ERROR"):
        select(spark, checked, {"t": spark.range(1), "u": spark.range(1)})


@pytest.mark.parametrize("hint", ["REPARTITION(10)", "COALESCE(1)", "REBALANCE"])
def test_without_the_gate_a_hint_that_moves_rows_is_refused(spark: SparkSession, granted: str, hint: str) -> None:
    checked_frame(spark, "SELECT /*+ BROADCAST(granted) */ id FROM granted", frozenset({granted}))
    with pytest.raises(InvalidSql, match="which is not allowed"):
        checked_frame(spark, f"SELECT /*+ {hint} */ id FROM granted", frozenset({granted}))  # noqa: S608 - a test's


def test_a_leaf_that_is_no_view_is_refused_even_if_nothing_names_it(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "rows"))
    spark.read.parquet(str(tmp_path / "rows")).createOrReplaceTempView("mine")
    try:
        checked_frame(spark, "SELECT * FROM mine", frozenset({"mine"}))
        with pytest.raises(InvalidSql, match="not granted"):
            checked_frame(spark, "SELECT * FROM mine", frozenset())
    finally:
        spark.catalog.dropTempView("mine")
