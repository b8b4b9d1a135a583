"""Files that a query cannot need are not opened, and its rows are the same. 40 s."""

# ruff: noqa: S608 - queries of a test

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.support.cases.analyst_queries import quick_session
from tests.support.systems.query import QuerySystem
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.data.files.parquet_reader import read_files
from tracelake.domain.access.object_names import Folder
from tracelake.domain.filter.parse import parse_where
from tracelake.domain.ranges import Range
from tracelake.domain.sql.gate import check_sql
from tracelake.domain.sql.numbers import needed_numbers
from tracelake.query.checked_query import ColdFiles, FileFacts, Relation
from tracelake.query.prune_files import narrowed
from tracelake.spark.plan_check import select
from tracelake.wire.task.markers import ColumnEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (ColumnEntry("block_number", "bigint"), ColumnEntry("v", "bigint"))
FILES: Sequence[Sequence[int | None]] = [[0, 1, 2], [3, 4, 5], [6, 7, None], [8, 9, 10, 2], [None], [11, -4, 30]]
"""Block numbers of each file: separate, overlapping, none, and far apart."""


@dataclass(frozen=True)
class Tables:
    spark: SparkSession
    objects: DiskObjects
    relations: Mapping[str, Relation]
    whole: Mapping[str, DataFrame]

    def frames(self, relations: Mapping[str, Relation]) -> dict[str, DataFrame]:
        return {
            name: self.whole[name] if item is self.relations[name] else self._read(item)
            for name, item in relations.items()
        }

    def _read(self, relation: Relation) -> DataFrame:
        assert relation.cold is not None
        return read_files(self.spark, self.objects, relation.cold.files, COLUMNS)


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    objects = DiskObjects(tmp_path_factory.mktemp("narrow"))
    session = quick_session(spark)
    relations = {name: relation(objects, name) for name in ("t", "u")}
    bare = Tables(session, objects, relations, {})
    return Tables(session, objects, relations, {name: bare._read(item) for name, item in relations.items()})


def relation(objects: DiskObjects, name: str) -> Relation:
    folder, facts = Folder.parse(f"s3://trace/datasets/{uuid4()}/{uuid4()}/"), {}
    for number, numbers in enumerate(FILES):
        sink = pa.BufferOutputStream()
        values = [n * 7 % 5 if n is not None else 9 for n in numbers]
        pq.write_table(pa.table({"block_number": pa.array(numbers, pa.int64()), "v": pa.array(values)}), sink)
        file = folder.object(f"part{number}.parquet")
        objects.put(file, sink.getvalue().to_pybytes())
        known = [n for n in numbers if n is not None]
        facts[file] = FileFacts(100, len(numbers), (min(known), max(known)) if known else None)
    cold = ColdFiles((uuid4(), 1), COLUMNS, tuple(facts), 600, 17, facts=facts)
    return Relation(name, uuid4(), cold.pin[0], 1, hot=False, cold=cold)


NUMBERS = st.integers(-6, 32).map(str)
OTHERS = st.sampled_from(
    ["3.5", "'4'", "CAST(5 AS bigint)", "v", "1 + 2", "NULL", "-(3)", "9223372036854775808", "4e0"]
)
VALUES = st.integers(0, 7).flatmap(lambda integer: NUMBERS if integer else OTHERS)


@st.composite
def conditions(draw: st.DrawFn, names: Sequence[str], depth: int = 2) -> str:
    if depth and draw(st.integers(0, 2)):
        left, right = draw(conditions(names, depth - 1)), draw(conditions(names, depth - 1))
        joined = draw(st.sampled_from(["AND", "AND", "OR"]))
        plain = f"({left}) {joined} ({right})"
        return draw(st.sampled_from([plain, plain, plain, f"NOT ({plain})"]))
    column = (
        f"{draw(st.sampled_from(names))}{draw(st.sampled_from(['block_number', 'BLOCK_NUMBER', '`block_number`']))}"
    )
    value, other = draw(VALUES), draw(VALUES)
    compared = draw(st.sampled_from(["=", "=", "<", "<=", ">", ">=", "<>", "<=>"]))
    return draw(
        st.sampled_from(
            [
                *[f"{column} {compared} {value}"] * 6,
                f"{value} {compared} {column}",
                f"{column} BETWEEN {value} AND {other}",
                f"{column} NOT BETWEEN {value} AND {other}",
                f"{column} IN ({value}, {other})",
                f"{column} NOT IN ({value}, {other})",
                f"{column} IS NULL",
                f"coalesce({column}, 3) = {value}",
                f"{names[0]}v = {value}",
            ]
        )
    )


THROUGH = [
    f"{made} WHERE {condition}"
    for condition in ("CONDITION", "(CONDITION) AND x.v < 4")
    for made in (
        "SELECT x.v FROM (SELECT * FROM t) x",
        "SELECT x.v FROM (SELECT block_number, v FROM t WHERE INSIDE) x",
        "SELECT x.v FROM (SELECT v AS block_number, block_number AS v FROM t) x",
        "SELECT x.v FROM (SELECT v, block_number FROM t) AS x (block_number, v)",
        "SELECT x.v FROM (SELECT t.*, 1 AS k FROM t) x",
        "SELECT x.v FROM (SELECT DISTINCT v % 2 AS v, block_number FROM t) x",
        "SELECT x.n FROM (SELECT block_number, v, count(*) AS n FROM t GROUP BY block_number, v) x",
        "SELECT x.n FROM (SELECT max(block_number) AS block_number, v, count(*) AS n FROM t GROUP BY v) x",
        "SELECT x.n FROM (SELECT block_number, v, count(*) AS n FROM t GROUP BY CUBE (block_number, v)) x",
        "SELECT x.n FROM (SELECT block_number, v, count(*) AS n FROM t GROUP BY block_number, v WITH ROLLUP) x",
        "SELECT x.n FROM (SELECT block_number, v, row_number() OVER (ORDER BY block_number, v) AS n FROM t) x",
        "SELECT x.n FROM (SELECT block_number, v, sum(v) OVER (PARTITION BY v) AS n FROM t) x",
        "SELECT x.v FROM (SELECT * FROM t ORDER BY v, block_number LIMIT 5) x",
        "SELECT x.v FROM (SELECT * FROM t ORDER BY v, block_number LIMIT 9 OFFSET 2) x",
        "SELECT x.v FROM (SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY v ORDER BY block_number) = 1) x",
        "SELECT x.v FROM (SELECT block_number, v FROM t UNION ALL SELECT block_number, v FROM u) x",
        "SELECT x.v FROM (SELECT block_number, v FROM t UNION SELECT v, block_number FROM u) x",
        "SELECT x.v FROM (SELECT block_number, v FROM t UNION ALL SELECT CAST(v AS double), 1 FROM u) x",
        "SELECT x.v FROM (SELECT block_number, v FROM t EXCEPT SELECT block_number, v FROM u WHERE INSIDE) x",
        "SELECT x.v FROM (SELECT block_number, v FROM t INTERSECT ALL SELECT block_number, 1 FROM u) x",
        "SELECT x.v FROM (SELECT * FROM t UNION ALL SELECT v, block_number FROM u) x",
        "SELECT x.v FROM (SELECT block_number, v FROM t UNION ALL SELECT * FROM u ORDER BY 1, 2 LIMIT 4) x",
        "WITH c AS (SELECT * FROM t) SELECT x.v FROM c x",
        "WITH c (v, block_number) AS (SELECT v, block_number FROM t) SELECT x.v FROM c x",
        "WITH c AS (SELECT * FROM t), d AS (SELECT * FROM c WHERE INSIDE) SELECT x.v FROM d x",
        "WITH c AS (SELECT * FROM t) SELECT x.v, (SELECT count(*) FROM c) AS n FROM c x",
        "WITH c AS (SELECT * FROM t) SELECT x.v FROM c x JOIN c y ON x.block_number = y.block_number",
        "WITH c AS (SELECT * FROM t) SELECT x.v FROM c x JOIN c y ON x.v = y.block_number",
        "WITH c AS (SELECT block_number AS n, v FROM t) SELECT x.v FROM c y JOIN u x ON x.block_number = y.n",
        "WITH c AS (SELECT block_number AS n, v FROM t) SELECT x.v FROM c y FULL JOIN u x ON x.block_number = y.n",
        "WITH c AS (SELECT * FROM t) SELECT x.v FROM u x LEFT JOIN c y ON x.block_number = y.block_number",
        "WITH c AS (SELECT * FROM t) SELECT x.v FROM u y LEFT JOIN c x ON x.block_number = y.block_number",
        "WITH c AS (SELECT * FROM t) SELECT x.v FROM u x LEFT ANTI JOIN c y ON x.block_number = y.block_number",
        "SELECT x.v FROM (SELECT b.block_number, a.v FROM t a LEFT JOIN u b ON a.block_number = b.block_number) x",
        (
            "SELECT x.n FROM (SELECT b.block_number, a.v, count(*) AS n FROM t a RIGHT JOIN u b ON a.v = b.v"
            " GROUP BY b.block_number, a.v) x"
        ),
        "SELECT x.v FROM (SELECT a.* FROM t a JOIN u b USING (block_number)) x",
        "SELECT x.v FROM (SELECT * FROM t a JOIN u b USING (block_number, v)) x",
        "SELECT x.v FROM (SELECT t.block_number, e AS v FROM t LATERAL VIEW explode(array(1, v)) l AS e) x",
        "SELECT x.v FROM (WITH t2 AS (SELECT * FROM t) SELECT * FROM t2 WHERE INSIDE) x",
    )
]
"""Conditions on the results of a WITH or a subquery."""


@st.composite
def queries(draw: st.DrawFn) -> str:
    plain, aliased, both = draw(conditions(["", "t."])), draw(conditions(["x."])), draw(conditions(["a.", "b."]))
    join = draw(
        st.sampled_from(
            ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]
        )
    )
    on = (
        ""
        if join == "CROSS JOIN"
        else f"ON {draw(st.sampled_from(['a.block_number = b.block_number', 'a.v = b.v', both]))}"
    )
    generated = "SELECT t.v, g.block_number FROM t LATERAL VIEW explode(array(1, 4)) g AS block_number WHERE t.v = 1"
    of_both = draw(conditions(["t.", "g."]))
    three = "SELECT a.v FROM t a, u b, t c WHERE a.block_number = b.block_number AND c.block_number = b.block_number"
    through = draw(st.sampled_from(THROUGH)).replace("INSIDE", plain)
    of_a = draw(conditions(["a."])) if join.endswith(("SEMI JOIN", "ANTI JOIN")) else both
    return draw(
        st.sampled_from(
            [
                f"SELECT * FROM t WHERE {plain}",
                f"SELECT count(*) AS n, sum(v) AS s FROM t WHERE {plain}",
                f"SELECT x.v FROM t AS x WHERE {aliased}",
                f"SELECT * FROM t AS x (v, block_number) WHERE {aliased}",
                f"WITH c AS (SELECT * FROM t WHERE {plain}) SELECT * FROM c x JOIN t ON x.v = t.v WHERE {aliased}",
                f"SELECT * FROM (SELECT v AS block_number, block_number AS v FROM t) x WHERE {aliased}",
                f"SELECT * FROM u WHERE v IN (SELECT v FROM t WHERE {plain})",
                f"SELECT * FROM u WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.v = u.v AND ({plain}))",
                f"SELECT * FROM t WHERE {plain} UNION ALL SELECT * FROM t x WHERE {aliased}",
                f"{generated} AND ({of_both})",
                *[f"SELECT a.v, a.block_number FROM t a {join} u b {on} WHERE {of_a}"] * 3,
                f"{three} AND ({both})",
                *[through.replace("CONDITION", aliased)] * 12,
            ]
        )
    )


@pytest.mark.long
@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(queries())
def test_pruned_files_do_not_change_the_rows(tables: Tables, sql: str) -> None:
    checked = check_sql(sql, set(tables.relations))
    read = {name: tables.relations[name] for name in checked.tables}
    left = narrowed(checked, read)
    if left == read:
        event("all files are needed")
        return
    event("some files are left out")
    assert rows(tables, sql, left) == rows(tables, sql, read)


def rows(tables: Tables, sql: str, relations: Mapping[str, Relation]) -> list[str] | str:
    """A query that Spark refuses is refused with the same error."""
    try:
        frame = select(tables.spark, check_sql(sql, set(tables.relations)), tables.frames(relations))
        return sorted(map(str, frame.collect()))
    except Exception as refused:  # noqa: BLE001 - whatever it is, it is the same
        return type(refused).__name__


@pytest.mark.parametrize(
    ("sql", "files"),
    [
        ("SELECT * FROM t WHERE block_number = 4", [1, 3, 4, 5]),
        ("SELECT * FROM t WHERE block_number BETWEEN 5 AND 6 AND v > 0", [1, 2, 3, 4, 5]),
        ("SELECT * FROM t WHERE block_number IN (0, 31)", [0, 4, 5]),
        ("SELECT * FROM t WHERE 30 < t.block_number", [4]),
        ("SELECT * FROM t WHERE block_number = 1 OR v = 2", [0, 1, 2, 3, 4, 5]),
        ("SELECT a.v FROM u b JOIN t a ON a.block_number = b.block_number WHERE b.block_number < 0", [4, 5]),
        (
            "SELECT a.v FROM u b LEFT JOIN t a ON a.block_number = b.block_number WHERE b.block_number < 0",
            [0, 1, 2, 3, 4, 5],
        ),
        ("SELECT a.v FROM t a JOIN u b ON a.v = b.v AND a.block_number < 0", [4, 5]),
        ("WITH c AS (SELECT * FROM t) SELECT v FROM c WHERE block_number < 0", [4, 5]),
        (
            "WITH c AS (SELECT * FROM t), d AS (SELECT v, block_number FROM c) SELECT v FROM d WHERE 30 < block_number",
            [4],
        ),
        ("WITH c (n, v) AS (SELECT block_number, v FROM t) SELECT x.v FROM c x WHERE x.n = 1", [0, 4, 5]),
        ("SELECT v FROM (SELECT block_number AS n, v FROM t) WHERE n IN (0, 31)", [0, 4, 5]),
        (
            "SELECT n FROM (SELECT block_number, count(*) AS n FROM t GROUP BY block_number) WHERE block_number = 31",
            [4],
        ),
        (
            (
                "SELECT v FROM (SELECT block_number, v FROM u UNION ALL SELECT block_number AS b, v FROM t)"
                " WHERE block_number < 0"
            ),
            [4, 5],
        ),
        (
            (
                "WITH c AS (SELECT * FROM t) SELECT a.v FROM c a JOIN c b ON a.v = b.v"
                " WHERE a.block_number < 0 AND b.block_number = 1"
            ),
            [0, 4, 5],
        ),
        (
            (
                "WITH c AS (SELECT block_number AS n, v FROM u) SELECT t.v FROM c JOIN t ON c.n = t.block_number"
                " WHERE c.n < 0"
            ),
            [4, 5],
        ),
        (
            "WITH c AS (SELECT * FROM t) SELECT v, (SELECT count(*) FROM c) FROM c WHERE block_number < 0",
            [0, 1, 2, 3, 4, 5],
        ),
        ("SELECT v FROM (SELECT * FROM t ORDER BY v LIMIT 3) WHERE block_number < 0", [0, 1, 2, 3, 4, 5]),
        ("SELECT n FROM (SELECT block_number, sum(v) OVER () AS n FROM t) WHERE block_number < 0", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_files_outside_the_ranges_of_the_query_are_pruned(tables: Tables, sql: str, files: list[int]) -> None:
    """The numbers of file 4 are not known: it is always read."""
    checked = check_sql(sql, set(tables.relations))
    cold = narrowed(checked, {name: tables.relations[name] for name in checked.tables})["t"].cold
    assert cold is not None
    assert [name.name for name in cold.files] == [f"part{number}.parquet" for number in files]
    assert (cold.key == cold.pin) == (len(files) == len(FILES)), "a view of some files is not that of all"


def test_nested_common_table_expressions_are_each_analysed_once() -> None:
    """There are 2 to the 60th paths to the first of 60."""
    ctes = [f"c{n} AS (SELECT a.block_number, a.v FROM c{n - 1} a JOIN c{n - 1} b ON a.v = b.v)" for n in range(1, 61)]
    query = f"WITH c0 AS (SELECT block_number, v FROM t), {', '.join(ctes)} SELECT v FROM c60 WHERE block_number = 4"
    assert needed_numbers(check_sql(query, {"t"}, bounded=False), "block_number", {"t"}) == {}
    every = query.replace("ON a.v = b.v", "ON a.v = b.v AND a.block_number = b.block_number")
    found = needed_numbers(check_sql(every, {"t"}, bounded=False), "block_number", {"t"})
    assert found == {"t": ((4, 4),)}


def test_files_outside_the_ranges_of_a_dag_filter_are_pruned(tables: Tables) -> None:
    given = replace(tables.relations["t"], filters=(parse_where("block_number < 0"), parse_where("block_number = 1")))
    cold = narrowed(check_sql("SELECT v FROM t WHERE v = 1", {"t"}), {"t": given})["t"].cold
    assert cold is not None
    assert [name.name for name in cold.files] == ["part0.parquet", "part4.parquet", "part5.parquet"]


def test_files_partly_replaced_by_another_generation_are_pruned_too() -> None:
    folder = Folder.parse(f"s3://trace/datasets/{uuid4()}/{uuid4()}/")
    low, high = folder.object("low.parquet"), folder.object("high.parquet")
    facts = {low: FileFacts(10, 2, (0, 9)), high: FileFacts(20, 3, (10, 19))}
    cold = ColdFiles((uuid4(), 1), COLUMNS, (), 30, 5, {(Range(0, 5),): (low,), (Range(10, 12),): (high,)}, facts)
    relation = Relation("t", uuid4(), cold.pin[0], 1, hot=False, cold=cold)
    left = narrowed(check_sql("SELECT * FROM t WHERE block_number = 11", {"t"}), {"t": relation})["t"].cold
    assert left is not None
    assert (dict(left.cut), left.bytes, left.rows) == ({(Range(10, 12),): (high,)}, 20, 3)


VALUE_OF = "SELECT value FROM feed WHERE block_number = {}"


@pytest.mark.anyio
async def test_a_query_for_one_block_opens_no_file_without_it(system: QuerySystem) -> None:
    """The whole way: the worker that wrote the files noted their numbers."""
    there = await system.add("feed", 10)
    gone = await system.add("feed", 10)
    root = system.operators.walk.control.objects.root  # type: ignore[attr-defined]
    (file,) = root.rglob(f"*{gone}_{gone + 9}.parquet")
    away = file.rename(file.with_suffix(".away"))
    try:
        assert await system.rows("reader", VALUE_OF.format(there)) == [[there * 10]]
        needed = await system.refused("reader", VALUE_OF.format(gone))
        assert needed == (503, "unavailable"), "it is missing, which is not the query's fault"
    finally:
        away.rename(file)
    assert await system.rows("reader", VALUE_OF.format(gone)) == [[gone * 10]]
