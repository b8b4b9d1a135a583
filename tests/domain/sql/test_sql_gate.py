"""What the gate lets through is rendered as it was meant; refusals say where and what to do; lineage never misses."""

from __future__ import annotations

import pytest

from tracelake.domain.dag.catalog import ColumnSource
from tracelake.domain.sql.functions import CLOCKS_AND_CHANCE, FUNCTIONS
from tracelake.domain.sql.gate import check_sql
from tracelake.domain.sql.lineage import column_lineage, refuse_repeated_columns, unnamed_columns
from tracelake.errors import InvalidSql

RENDERED = {
    "SELECT CAST(a AS INT) AS x, a::string AS y FROM t": (
        "SELECT CAST(a AS INT) AS x, CAST(a AS STRING) AS y FROM `v` AS `t`"
    ),
    "SELECT CAST(a AS VARCHAR(2)) AS x, CAST(b AS ARRAY<CHAR(3)>) AS y FROM t": (
        "SELECT CAST(a AS STRING) AS x, CAST(b AS ARRAY<STRING>) AS y FROM `v` AS `t`"
    ),
    "SELECT arrays_zip() AS x FROM t": "SELECT arrays_zip() AS x FROM `v` AS `t`",
    "SELECT c * mod(a, b) AS x FROM t": "SELECT c * mod(a, b) AS x FROM `v` AS `t`",
    "SELECT T.a FROM T": "SELECT T.a FROM `v` AS `T`",
    "SELECT a FROM t AS x -- why": "SELECT a FROM `v` AS x",
    "SELECT * FROM t LATERAL VIEW OUTER explode(a) x AS y": (
        "SELECT * FROM `v` AS `t` LATERAL VIEW OUTER explode(a) x AS y"
    ),
    "SELECT sum(a) FILTER (WHERE b > 1) OVER (PARTITION BY c ORDER BY d) AS s FROM t": (
        "SELECT sum(a) FILTER(WHERE b > 1) OVER (PARTITION BY c ORDER BY d) AS s FROM `v` AS `t`"
    ),
    r"SELECT r'\d+' AS a, 'it\'s' AS b FROM t": r"SELECT '\\d+' AS a, 'it\'s' AS b FROM `v` AS `t`",
    "WITH x AS (SELECT a FROM t), y AS (SELECT a FROM x) SELECT a FROM y": (
        "WITH x AS (SELECT a FROM `v` AS `t`), y AS (SELECT a FROM x) SELECT a FROM y"
    ),
    "FROM t SELECT a": "SELECT a FROM `v` AS `t`",
    "SELECT a FROM t QUALIFY rank() OVER (ORDER BY b) = 1": (
        "SELECT a FROM `v` AS `t` QUALIFY rank() OVER (ORDER BY b) = 1"
    ),
    "SELECT count(*) AS n FROM t GROUP BY window(ts, '1 hour')": (
        "SELECT count(*) AS n FROM `v` AS `t` GROUP BY window(ts, '1 hour')"
    ),
    "SELECT sum(a) OVER w AS s FROM t GROUP BY window(ts, '1 hour') WINDOW w AS (ORDER BY a ROWS 6 PRECEDING)": (
        "SELECT sum(a) OVER w AS s FROM `v` AS `t` GROUP BY window(ts, '1 hour')"
        " WINDOW w AS (ORDER BY a ROWS BETWEEN 6 PRECEDING AND CURRENT ROW)"
    ),
    "SELECT timestampdiff(SECOND, a, b) AS x, timestampadd(DAY, -1, a) AS y FROM t": (
        "SELECT timestampdiff(SECOND, a, b) AS x, timestampadd(DAY, -1, a) AS y FROM `v` AS `t`"
    ),
    """SELECT 'it''s' AS a, "it''s" AS b, 'a' 'b' AS c, 'a'"b" AS d, '''' AS e, "a""b" AS f FROM t""": (
        r"""SELECT 'it\'s' AS a, 'it\'\'s' AS b, 'ab' AS c, 'ab' AS d, '\'' AS e, 'a"b' AS f FROM `v` AS `t`"""
    ),
    "SELECT * FROM t PIVOT (sum(a) FOR k IN ('x', 'y' AS z))": (
        "SELECT * FROM `v` AS `t` PIVOT(sum(a) FOR k IN ('x', 'y' AS z))"
    ),
    "SELECT p.x FROM t PIVOT (sum(a) FOR k IN ('x')) AS p": (
        "SELECT p.x FROM (SELECT * FROM `v` AS `t` PIVOT(sum(a) FOR k IN ('x'))) AS p"
    ),
    "SELECT * FROM t UNPIVOT (v FOR k IN (a, b))": "SELECT * FROM `v` AS `t` UNPIVOT(v FOR k IN (a, b))",
    "SELECT array(a, b)[0] AS x, a << 2 AS y, a | b >> 1 AS z FROM t": (
        "SELECT array(a, b)[0] AS x, a << 2 AS y, a | b >> 1 AS z FROM `v` AS `t`"
    ),
    "SELECT trim(LEADING '0' FROM a) AS x, trim(BOTH FROM a) AS y, position('x' IN a) AS z FROM t": (
        "SELECT TRIM(LEADING '0' FROM a) AS x, trim(a) AS y, position('x', a) AS z FROM `v` AS `t`"
    ),
    "SELECT substring(a FROM 2 FOR 3) AS x, substring(a FOR 3) AS y, trim(a) AS z FROM t": (
        "SELECT substring(a, 2, 3) AS x, substring(a, 1, 3) AS y, trim(a) AS z FROM `v` AS `t`"
    ),
}


@pytest.mark.parametrize("query", RENDERED)
def test_what_runs_is_rendered_from_the_tree_with_each_table_renamed(query: str) -> None:
    assert check_sql(query, {"t"}).render({"t": "v"}) == RENDERED[query]


@pytest.mark.parametrize(
    ("query", "line", "column", "text", "hint"),
    [
        ("SELECT a\nFROM  trnsfers", 2, 7, "no table named 'trnsfers'", "transfers"),
        ("SELECT a,\n  coun(b) AS c\nFROM transfers", 2, 3, "no function coun()", "count"),
        ("SELECT now() AS x FROM transfers", 1, 8, "another result each time", "same when made again"),
        ("SELECT CAST('Now' AS DATE) AS x FROM transfers", 1, 13, "'Now' is another time", "same when made again"),
        (
            "SELECT to_date('today UTC') AS x FROM transfers",
            1,
            8,
            "'today UTC' is another time",
            "same when made again",
        ),
        ("SELECT a FROM transfers LIMIT 3", None, None, "LIMIT without ORDER BY", "ORDER BY"),
        ("SELECT a FROM transfers WHERE", 1, 29, "not SQL as Spark reads it", None),
        ("DELETE FROM transfers", 1, 1, "only a SELECT", "SELECT or WITH"),
        ("SELECT /*+ REPARTITION(9) */ a FROM transfers", 1, None, "this hint is not known", "broadcast"),
        ("SELECT /*+ BROADCAST('x') */ a FROM transfers", 1, None, "this hint is not known", "broadcast"),
        ("SELECT DISTINCT ON (a) a FROM transfers", 1, None, "DISTINCT ON", "QUALIFY"),
        ("SELECT * REPLACE (1 AS a) FROM transfers", 1, None, "takes EXCEPT alone", "name the other columns"),
        ("SELECT a FROM transfers UNION ALL BY NAME SELECT a FROM transfers", 1, None, "BY NAME", "in one order"),
        ("SELECT a FROM db.transfers", 1, 18, "without a dot", "inputs"),
        ("SELECT user AS x FROM transfers", 1, 8, "could be a function", "t.user"),
    ],
)
def test_a_refusal_says_what_where_and_what_to_do(
    query: str, line: int | None, column: int | None, text: str, hint: str | None
) -> None:
    with pytest.raises(InvalidSql) as refused:
        check_sql(query, {"transfers"})
    assert text in refused.value.message
    assert refused.value.line == line or line is None
    assert refused.value.column == column or column is None
    assert (hint or "") in (refused.value.hint or "")


def test_only_names_that_the_caller_may_read_are_suggested() -> None:
    with pytest.raises(InvalidSql) as refused:
        check_sql("SELECT a FROM salarys", {"transfers"})
    assert "salaries" not in str(refused.value.as_dict())
    with pytest.raises(InvalidSql) as refused:
        check_sql("SELECT a FROM salarys", {"transfers"}, near={"salaries"})
    assert (refused.value.message, refused.value.hint) == (
        "there is no table named 'salarys'",
        "did you mean salaries?",
    )


def test_a_with_is_seen_only_where_it_is_visible() -> None:
    for query in (
        "SELECT * FROM (WITH x AS (SELECT 1 AS a) SELECT a FROM x) y JOIN x ON true",
        "WITH y AS (SELECT a FROM x), x AS (SELECT 1 AS a) SELECT a FROM y",
        "WITH x AS (SELECT a FROM x) SELECT a FROM x",
    ):
        with pytest.raises(InvalidSql, match="no table named"):
            check_sql(query, {"t"})
    inner = "WITH x AS (SELECT a FROM t) SELECT a FROM t WHERE a IN (SELECT a FROM x WHERE EXISTS (SELECT 1 FROM x))"
    assert check_sql(inner, {"t"}).tables == {"t"}


def test_a_query_from_outside_may_read_the_clock_and_a_job_may_not() -> None:
    assert check_sql("SELECT now() AS x", {"t"}, deterministic=False)
    with pytest.raises(InvalidSql):
        check_sql("SELECT now() AS x", {"t"})


def test_a_query_from_outside_may_ask_the_clock_without_parentheses_and_its_plan_is_not_kept() -> None:
    checked = check_sql("SELECT a FROM t WHERE day > current_date - INTERVAL 7 DAYS", {"t"}, deterministic=False)
    assert not checked.lasting
    with pytest.raises(InvalidSql, match="could be a function"):
        check_sql("SELECT a FROM t WHERE day > current_date", {"t"})
    with pytest.raises(InvalidSql, match="could be a function"):
        check_sql("SELECT current_user AS u FROM t", {"t"}, deterministic=False)


def test_a_job_says_how_tables_are_joined_and_a_query_from_outside_leaves_it_to_spark() -> None:
    query = "SELECT /*+ BROADCAST(u), MERGE(t) */ t.a FROM t JOIN u ON t.a = u.a"
    assert "/*+ BROADCAST(u), MERGE(t) */" in check_sql(query, {"t", "u"}, bounded=False).render({"t": "v", "u": "w"})
    assert "BROADCAST" not in check_sql(query, {"t", "u"}).render({"t": "v", "u": "w"})


def test_a_job_may_fill_gaps_and_a_query_only_small_ones() -> None:
    query = "SELECT explode(sequence(a, b)) AS n FROM t"
    assert check_sql(query, {"t"}, bounded=False)
    with pytest.raises(InvalidSql, match="sequence"):
        check_sql(query, {"t"})
    assert check_sql("SELECT explode(sequence(1, 100)) AS n", set())


def test_no_function_is_on_two_lists() -> None:
    assert not FUNCTIONS & CLOCKS_AND_CHANCE


LINEAGE = {
    "SELECT a AS x, b + c AS y, 1 AS z FROM t": {"x": {"t.a"}, "y": {"t.b", "t.c"}},
    "SELECT * FROM t": {"*": {"t.*"}},
    "SELECT t.*, u.z AS q FROM t JOIN u USING (k)": {"*": {"t.*"}, "q": {"u.z"}},
    "SELECT z FROM t JOIN u ON t.k = u.k": {"z": {"t.z", "u.z"}},
    "WITH x AS (SELECT a, sum(b) OVER (PARTITION BY c) AS s FROM t) SELECT x.a, max(s) AS m FROM x GROUP BY 1": {
        "a": {"t.a"},
        "m": {"t.b", "t.c"},
    },
    "SELECT a AS x, b FROM t UNION ALL SELECT c, d FROM u": {"x": {"t.a", "u.c"}, "b": {"t.b", "u.d"}},
    "SELECT y FROM t LATERAL VIEW explode(t.items) e AS y": {"y": {"t.items"}},
    "SELECT (SELECT max(k) FROM u) AS top, s.f.g AS g FROM t": {"top": {"u.k"}, "g": {"t.s", "u.s"} - {"u.s"}},
    "SELECT q.a FROM (SELECT * FROM t) q": {"a": {"t.a"}},
    "SELECT n FROM (SELECT a, b FROM t) q (n, m)": {"n": {"t.a"}},
    "WITH x AS (SELECT * FROM t) SELECT a, z FROM x JOIN (SELECT z FROM u) y ON true": {"a": {"t.a"}, "z": {"u.z"}},
}


LINEAGE |= {
    "SELECT timestampdiff(SECOND, a, b) AS s FROM t": {"s": {"t.a", "t.b"}},
    "SELECT x FROM (SELECT g, k, v FROM t) PIVOT (sum(v) FOR k IN ('x'))": {"x": {"t.v", "t.k"}},
    "SELECT p.g FROM (SELECT g, k, v FROM t) PIVOT (sum(v) FOR k IN ('x')) AS p": {"g": {"t.g", "t.k", "t.v"}},
    "SELECT amount FROM t UNPIVOT (amount FOR kind IN (a, b))": {"amount": {"t.a", "t.amount", "t.b"}},
    "SELECT a FROM t QUALIFY row_number() OVER (ORDER BY b) = 1": {"a": {"t.a"}},
}
LINEAGE["SELECT x FROM (SELECT a AS x, b AS x FROM t) q"] = {"x": {"t.a", "t.b"}}


@pytest.mark.parametrize("query", LINEAGE)
def test_lineage_follows_columns_through_withs_subqueries_unions_and_stars(query: str) -> None:
    found: dict[str, set[str]] = {}
    for source in column_lineage(check_sql(query, {"t", "u"})):
        assert isinstance(source, ColumnSource)
        found.setdefault(source.output, set()).add(f"{source.input}.{source.input_column}")
    assert found == LINEAGE[query]


def test_a_column_without_a_name_is_found() -> None:
    assert list(unnamed_columns(check_sql("SELECT a, a + 1, *, count(*) AS n, max(a), t.s.f FROM t", {"t"}))) == [2, 5]


@pytest.mark.parametrize(
    ("query", "line", "column", "text"),
    [
        ("SELECT t.n,\n  u.n FROM t JOIN u ON true", 2, 5, "columns 1 and 2 of the result are both called n"),
        ("SELECT a AS v, b, c AS V FROM t", 1, 19, "columns 1 and 3 of the result are both called V"),
        ("WITH x AS (SELECT a FROM t) SELECT a, a FROM x UNION ALL SELECT b, c FROM u", 1, 39, "both called a"),
    ],
)
def test_two_columns_of_one_name_are_refused_with_their_place(query: str, line: int, column: int, text: str) -> None:
    with pytest.raises(InvalidSql, match=text) as refused:
        refuse_repeated_columns(check_sql(query, {"t", "u"}))
    assert (refused.value.line, refused.value.column) == (line, column)
    assert refused.value.hint


def test_columns_of_one_name_inside_of_a_query_and_behind_a_star_are_left_to_spark() -> None:
    for query in (
        "SELECT *, a FROM t",
        "SELECT t.*, u.* FROM t JOIN u ON true",
        "SELECT a, b FROM t UNION SELECT c, c FROM u",
    ):
        refuse_repeated_columns(check_sql(query, {"t", "u"}))
