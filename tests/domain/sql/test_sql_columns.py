"""A query's columns are checked against those of its tables, as far as they are known, and never further."""

from __future__ import annotations

import pytest
from sqlglot import parse_one

from tests.support.cases.analyst_queries import QUERIES
from tests.support.cases.analyst_queries import TABLES as ANALYSTS
from tracelake.chain.schemas import SCHEMAS
from tracelake.dispatcher.dags.catalog import operators
from tracelake.dispatcher.runtimes.known import runtime_specs
from tracelake.domain.dag.catalog import Catalog, PublishedDataset
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.sql.columns import check_columns, result_columns
from tracelake.domain.sql.gate import check_sql
from tracelake.errors import InvalidDag, InvalidSql
from tracelake.operators.helpers.chain_tables import COLUMNS
from tracelake.settings import RUNTIMES

TABLES = {"orders": ("id", "day", "amount", "items", "who", "tags"), "users": ("id", "name"), "any_": None}
GOOD = [
    "SELECT day, sum(amount) AS amount FROM orders GROUP BY day",
    "SELECT o.id, u.name FROM orders o JOIN users u ON u.id = o.who",
    "SELECT id, name FROM orders JOIN users USING (id)",
    "WITH d AS (SELECT day AS d, count(*) AS n FROM orders GROUP BY day) SELECT d.d, n FROM d ORDER BY n",
    "SELECT *, amount + 1 AS more FROM orders",
    "SELECT x.a + 1 AS b FROM (SELECT amount AS a FROM orders) x",
    "SELECT t AS tag FROM orders LATERAL VIEW explode(tags) e AS t",
    "SELECT transform(tags, x -> concat(x, who)) AS y FROM orders",
    "SELECT who.name AS y FROM orders",
    "SELECT orders.who.name.first AS y FROM orders",
    "SELECT id FROM orders o WHERE EXISTS (SELECT 1 AS one FROM users u WHERE u.id = o.who AND amount > 3)",
    "SELECT amount AS a, a + 1 AS b FROM orders",
    "SELECT date_add(day, 1) AS d, dateadd(DAY, 1, day) AS e FROM orders",
    "SELECT extract(year FROM day) AS f, date_diff(day, day) AS g FROM orders",
    "SELECT id, row_number() OVER (PARTITION BY who ORDER BY amount) AS n FROM orders",
    "SELECT id, rank() OVER w AS n FROM orders WINDOW w AS (PARTITION BY who ORDER BY amount)",
    "SELECT anything AS a, orders.id FROM orders JOIN any_ ON any_.x = orders.id",
    "SELECT ID FROM ORDERS",
    "SELECT id FROM orders UNION ALL SELECT id FROM users ORDER BY id",
    "SELECT max_by(id, amount) AS m, count_if(amount > 1) AS c FROM orders HAVING max(amount) > 1",
    "SELECT a.x AS y FROM (SELECT struct(id AS x) AS a FROM orders)",
    "SELECT aggregate(tags, 0, (acc, v) -> acc + v) AS s FROM orders",
    "SELECT id FROM orders GROUP BY ALL",
    "SELECT id, amount FROM orders ORDER BY ALL",
    "SELECT t.a FROM VALUES (1), (2) AS t(a)",
    "SELECT * EXCEPT (id) FROM orders",
    "SELECT who, mon FROM orders PIVOT (sum(amount) FOR day IN ('Mon' AS mon, 'Tue' AS tue))",
    "SELECT p.tue FROM (SELECT day, amount FROM orders) PIVOT (sum(amount) FOR day IN ('Tue' AS tue)) AS p",
    "SELECT id, what, said FROM users UNPIVOT (said FOR what IN (name))",
    "SELECT id FROM orders QUALIFY row_number() OVER (PARTITION BY who ORDER BY amount) = 1",
    "SELECT date '2020-01-01' AS d, interval 1 day AS i, timestamp '2020-01-01 00:00:00' AS t FROM orders",
    "SELECT filter(tags, (v, i) -> i > 0 AND v = who) AS f FROM orders",
    "SELECT map_filter(m, (k, v) -> k > v) AS f FROM (SELECT map(1, amount) AS m FROM orders)",
    "SELECT sum(amount) FILTER (WHERE who = 'x') AS s FROM orders",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) AS s FROM orders",
    "SELECT element_at(tags, 1) AS a, tags[0] AS b FROM orders",
]


@pytest.mark.parametrize("query", GOOD)
def test_a_query_whose_columns_are_there_or_could_be_is_not_refused(query: str) -> None:
    check_columns(check_sql(query, TABLES), TABLES)


@pytest.mark.parametrize(
    ("query", "column", "name", "hint"),
    [
        ("SELECT dy FROM orders", 8, "dy", "did you mean day?"),
        ("SELECT o.nam FROM orders o", 10, "o.nam", None),
        ("SELECT id FROM orders WHERE amout > 1", 29, "amout", "did you mean amount?"),
        ("SELECT x.b AS c FROM (SELECT amount AS a FROM orders) x", 10, "x.b", "one of: a"),
        ("WITH d AS (SELECT day AS d FROM orders) SELECT e FROM d", 48, "e", "one of: d"),
        (
            "SELECT id FROM orders o WHERE EXISTS (SELECT 1 AS b FROM users u WHERE u.nme = o.who)",
            74,
            "u.nme",
            "did you mean name?",
        ),
        ("SELECT sum(amounts) AS s FROM orders", 12, "amounts", "did you mean amount?"),
        ("SELECT name FROM orders JOIN users ON users.idd = orders.id", 45, "users.idd", "did you mean id?"),
        ("SELECT id FROM orders ORDER BY amont", 32, "amont", "did you mean amount?"),
        ("SELECT who, count(*) AS n FROM orders GROUP BY wo", 48, "wo", "did you mean who?"),
        ("SELECT id FROM users UNION ALL SELECT nme FROM users", 39, "nme", "did you mean name?"),
    ],
)
def test_a_column_that_is_in_no_table_is_refused_at_its_place(query: str, column: int, name: str, hint: str) -> None:
    with pytest.raises(InvalidSql) as refused:
        check_columns(check_sql(query, TABLES), TABLES)
    assert refused.value.message == f"there is no column '{name}'"
    assert (refused.value.where, refused.value.reason) == (f"line 1, column {column}", "unknown_column")
    assert hint is None or refused.value.hint == hint


def test_what_a_query_gives_is_known_where_its_stars_are() -> None:
    known = {query: result_columns(check_sql(query, TABLES), TABLES) for query in GOOD}
    assert known["SELECT *, amount + 1 AS more FROM orders"] == (*(TABLES["orders"] or ()), "more")
    assert known["SELECT * EXCEPT (id) FROM orders"] is None
    assert result_columns(check_sql("SELECT o.*, a.x FROM orders o JOIN any_ a USING (id)", TABLES), TABLES) is not None
    assert result_columns(check_sql("SELECT * FROM orders JOIN any_ USING (id)", TABLES), TABLES) is None


def test_the_columns_of_a_chain_are_those_of_its_schemas() -> None:
    assert {name: tuple(schema.names) for name, schema in SCHEMAS.items()} == COLUMNS


DAG = """\
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: load, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: files, operator: read_files, config: {path: a, format: csv, columns: [id bigint]},
     inputs: [{from: {job: load}}]}
  - {name: guessed, operator: read_files, config: {path: a, format: csv}, inputs: [{from: {job: load}}]}
  - {name: chain, operator: cryo_ingest, config: {rpc_pool: dev}, inputs: [{from: {job: load}}],
     outputs: [blocks, transactions, logs]}
  - {name: decoded, operator: evm_decode, config: {abi: erc20, events: [approval, transfer]},
     inputs: [{from: {job: chain, output: logs}}], outputs: [approvals, transfers]}
  - {name: code, operator: python, config: {function: "m:f"}, inputs: [{from: {job: load}}],
     outputs: [{dataset: rows}, {name: own, storage: parquet}]}
  - {name: first, operator: sql, config: {query: SELECT id AS number FROM files}, inputs: [{from: {job: files}}]}
  - {name: last, operator: sql, config: {query: SELECT COLUMN AS a FROM t}, inputs: [{from: {SOURCE}, name: t}]}
publish:
  rows: {storage: postgres, write_mode: buffered, columns: {key: text}, unique_key: [key]}
"""
CATALOG = Catalog(
    operators(),
    runtime_specs(RUNTIMES),
    {"theirs": PublishedDataset("other", columns=("mine",)), "unknown": PublishedDataset("other")},
)


@pytest.mark.parametrize(
    ("source", "column"),
    [
        ("job: files", "id"),
        ("job: chain, output: logs", "topic0"),
        ("job: decoded, output: transfers", "value_decimal"),
        ("job: decoded, output: approvals", "spender"),
        ("job: first", "number"),
        ("job: code, output: rows", "key"),
        ("dataset: rows", "key"),
        ("dataset: theirs", "mine"),
    ],
)
def test_a_job_reads_only_columns_that_its_inputs_are_known_to_have(source: str, column: str) -> None:
    text = DAG.replace("SOURCE", source)
    assert parse_dag(text.replace("COLUMN", column), CATALOG).jobs
    with pytest.raises(InvalidDag) as refused:
        parse_dag(text.replace("COLUMN", f"{column}x"), CATALOG)
    (problem,) = refused.value.problems
    assert (problem.line, problem.field, problem.code) == (15, "jobs[7].config.query", "unknown_column")
    assert problem.reason == f"line 1, column 8 of the query: there is no column '{column}x'"
    assert str(problem.suggestion) in {f"did you mean {column}?", f"one of: {column}"}


@pytest.mark.parametrize("source", ["job: guessed", "job: code, output: own", "dataset: unknown"])
def test_a_job_may_read_any_column_of_an_input_that_is_not_known(source: str) -> None:
    assert parse_dag(DAG.replace("SOURCE", source).replace("COLUMN", "anything"), CATALOG).jobs


def test_of_an_abi_that_is_refused_no_columns_are_guessed() -> None:
    text = DAG.replace("SOURCE", "job: decoded, output: transfers").replace("COLUMN", "anything")
    with pytest.raises(InvalidDag) as refused:
        parse_dag(text.replace("abi: erc20", "abi: erc99"), CATALOG)
    assert [problem.field for problem in refused.value.problems] == ["jobs[4].config.abi"]


def test_none_of_two_hundred_queries_of_analysts_is_refused_for_a_column() -> None:
    """They run on these very tables, in `tests/query/gate/test_analyst_queries.py`."""
    known = {name: _columns_of(rows) for name, rows in ANALYSTS.items()}
    assert sum(columns is not None for columns in known.values()) >= 6
    for query in QUERIES.values():
        check_columns(check_sql(query, known, deterministic=False, bounded=False), known)


def _columns_of(rows: str) -> tuple[str, ...] | None:
    made = parse_one(rows, dialect="spark").expressions
    return None if any(item.is_star for item in made) else tuple(item.alias_or_name for item in made)
