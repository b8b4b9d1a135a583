"""The columns that a query can read are never too few; those that an edit can change are found, or all of them are."""

from __future__ import annotations

import pytest

from tracelake.domain.dag.catalog import ChangedFields
from tracelake.domain.sql.changed_columns import changed_columns
from tracelake.domain.sql.columns_read import columns_read
from tracelake.domain.sql.gate import CheckedSql, check_sql

READ = {
    "SELECT a AS b FROM t": {"a"},
    "SELECT A FROM t WHERE B > 1": {"a", "b"},
    "SELECT a FROM t GROUP BY a HAVING max(b) > 1 ORDER BY min(c)": {"a", "b", "c"},
    "SELECT count(*) AS n FROM t": set(),
    "SELECT 1 AS one FROM t": set(),
    "SELECT count(DISTINCT a) AS n FROM t": {"a"},
    "SELECT t.a FROM t JOIN u USING (k)": {"t", "a", "k"},
    "SELECT t.a FROM t JOIN u ON t.x = u.y": {"t", "a", "x", "u", "y"},
    "SELECT a FROM t WHERE EXISTS (SELECT 1 AS one FROM u WHERE u.k = t.z)": {"a", "u", "k", "t", "z"},
    "SELECT a FROM t WHERE b IN (SELECT c FROM u)": {"a", "b", "c"},
    "WITH w AS (SELECT a, b FROM t) SELECT a FROM w": {"a", "b"},
    "SELECT x FROM (SELECT a AS x, b FROM t) AS s": {"x", "a", "b"},
    "SELECT x FROM (SELECT a FROM t) AS s (x)": {"x", "a"},
    "SELECT e FROM t LATERAL VIEW explode(list) l AS e": {"e", "list"},
    "SELECT transform(a, i -> i + b) AS r FROM t": {"a", "i", "b"},
    "SELECT a.b.c AS d FROM t": {"a", "b", "c"},
    "SELECT sum(a) OVER (PARTITION BY g ORDER BY o) AS s FROM t": {"a", "g", "o"},
    "SELECT sum(a) OVER w AS s FROM t WINDOW w AS (PARTITION BY g)": {"a", "g", "w"},
    "SELECT a FROM t UNION ALL SELECT b FROM u": {"a", "b"},
    "SELECT a, a + 1 AS b, b + c AS d FROM t": {"a", "b", "c"},
    "SELECT CASE WHEN a > 1 THEN b ELSE c END AS d FROM t": {"a", "b", "c"},
    "SELECT a FROM t QUALIFY row_number() OVER (ORDER BY z) = 1": {"a", "z"},
}
ANY = [
    "SELECT * FROM t",
    "SELECT t.* FROM t",
    "SELECT a FROM (SELECT * FROM t) AS s",
    "SELECT * EXCEPT (a) FROM t",
    "SELECT struct(*) AS s FROM t",
    "SELECT count(DISTINCT *) AS n FROM t",
    "SELECT a FROM t NATURAL JOIN u",
    "SELECT x FROM t AS s (x, y)",
    "SELECT * FROM t PIVOT (sum(a) FOR b IN (1 AS one))",
    "SELECT a FROM t WHERE EXISTS (SELECT * FROM u)",
    "SELECT `größe` AS g FROM t",
]
CHANGED: list[tuple[str, str, set[str] | None]] = [
    ("SELECT a, b FROM t", "SELECT a, b FROM t", set()),
    ("SELECT a, b FROM t", "SELECT a, b + 1 AS b FROM t", {"b"}),
    ("SELECT a, b FROM t", "SELECT a, b, c FROM t", {"c"}),
    ("SELECT a, b FROM t", "SELECT a FROM t", {"b"}),
    ("SELECT a, b FROM t", "SELECT b, a FROM t", None),
    ("SELECT a, b AS x FROM t WHERE b > 0", "SELECT a, b + 1 AS x FROM t WHERE b > 0", {"x"}),
    ("SELECT a AS x, x + 1 AS y, b FROM t", "SELECT a + 1 AS x, x + 1 AS y, b FROM t", {"x", "y"}),
    ("SELECT a, b FROM t WHERE b > 0", "SELECT a, b FROM t WHERE b > 1", None),
    ("SELECT a, b FROM t", "SELECT DISTINCT a, b + 1 AS b FROM t", None),
    ("SELECT a, b FROM t ORDER BY a LIMIT 1", "SELECT a, b + 1 AS b FROM t ORDER BY a LIMIT 1", None),
    ("SELECT a, b AS s FROM t GROUP BY a, s", "SELECT a, b + 1 AS s FROM t GROUP BY a, s", None),
    ("SELECT a, b AS s FROM t GROUP BY 1, 2", "SELECT a, b + 1 AS s FROM t GROUP BY 1, 2", None),
    ("SELECT a, b AS s FROM t ORDER BY 2", "SELECT a, b + 1 AS s FROM t ORDER BY 2", None),
    ("SELECT a, b AS s FROM t ORDER BY s", "SELECT a, b + 1 AS s FROM t ORDER BY s", None),
    ("SELECT 1 AS one, sum(b) AS s FROM t", "SELECT 1 AS one, 2 AS s FROM t", None),
    ("SELECT a, b FROM t", "SELECT a, explode(b) AS b FROM t", None),
    ("SELECT a, b FROM t", "SELECT a, lag(b) OVER (ORDER BY a) AS b FROM t", None),
    ("SELECT a, b FROM t", "SELECT a, (SELECT max(k) FROM u) AS b FROM t", None),
    ("SELECT a, b FROM t", "SELECT a, b FROM u", None),
    ("SELECT a, b FROM t", "SELECT * FROM t", None),
    ("SELECT a FROM t UNION ALL SELECT a FROM u", "SELECT a FROM t UNION SELECT a FROM u", None),
]
UPSTREAM: list[tuple[str, set[str] | None, set[str] | None]] = [
    ("SELECT a, b FROM t", {"z"}, set()),
    ("SELECT a, b FROM t", {"b"}, {"b"}),
    ("SELECT a, b AS x, x + 1 AS y FROM t", {"b"}, {"x", "y"}),
    ("SELECT a FROM t WHERE b > 0", {"b"}, None),
    ("SELECT a FROM t JOIN u USING (k)", {"k"}, None),
    ("SELECT a, count(*) AS n FROM t GROUP BY a", {"b"}, set()),
    ("SELECT a, max(b) AS n FROM t GROUP BY a", {"b"}, None),
    ("SELECT * FROM t", {"z"}, None),
    ("SELECT * FROM t", set(), set()),
    ("SELECT a FROM t", None, None),
]


def query(text: str) -> CheckedSql:
    return check_sql(text, ["t", "u"], bounded=False)


@pytest.mark.parametrize(("text", "names"), READ.items())
def test_every_column_that_a_query_may_read_is_named(text: str, names: set[str]) -> None:
    assert columns_read(query(text)) == frozenset(names)


@pytest.mark.parametrize("text", ANY)
def test_a_query_that_reads_columns_without_naming_them_may_read_any(text: str) -> None:
    assert columns_read(query(text)) is None


@pytest.mark.parametrize(("former", "new", "changed"), CHANGED)
def test_an_edit_changes_the_columns_of_its_list_or_anything(former: str, new: str, changed: set[str] | None) -> None:
    assert changed_columns(query(former), query(new), {}) == changed
    assert changed_columns(query(new), query(former), {}) == changed


@pytest.mark.parametrize(("text", "of_table", "changed"), UPSTREAM)
def test_changed_columns_of_a_table_change_what_is_made_of_them(
    text: str, of_table: set[str] | None, changed: set[str] | None
) -> None:
    given: dict[str, ChangedFields] = {"t": None if of_table is None else frozenset(of_table)}
    assert changed_columns(query(text), query(text), given) == changed
