"""Tables in Postgres, and the DAG's filters, on Sail: one snapshot with the files, and only the caller's rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg import sql

from tests.support.evaluate_filter import holds
from tests.support.postgres import RunningServer
from tests.support.query.data_reader import reader_of
from tests.support.query.sail import SailSystem, sail_system
from tests.support.spark.hot_tables import chain, hot_table, rows_of
from tracelake.data.buffered.tables import BufferedTable
from tracelake.data.buffered.tables import ensure as make_buffered
from tracelake.data.hot.sweep import mark_compacted
from tracelake.data.hot.tables import HotTable, ensure
from tracelake.data.hot.view import held, view_of
from tracelake.data.hot.writer import rewrite
from tracelake.data.postgres.column_types import wide
from tracelake.domain.buffered import Column, Declaration
from tracelake.domain.filter.parse import parse_where
from tracelake.domain.ranges import Range
from tracelake.errors import Unavailable
from tracelake.query.checked_query import Relation
from tracelake.query.engine import CannotRun
from tracelake.query.sail import hot_tables
from tracelake.query.sail import tables as tables_module
from tracelake.store.migrate import Database

pytestmark = pytest.mark.anyio
COLUMNS = {"block_number": "bigint", "position": "int", "content": "bigint"}


@pytest.fixture(scope="module")
def data(postgres: RunningServer, template: Callable[[Database], str]) -> str:
    return postgres.create_database(f"data_{uuid4().hex[:12]}", template("data"))


@pytest.fixture(scope="module")
async def system(data: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SailSystem]:
    folder = tmp_path_factory.mktemp("sail")
    async with sail_system(folder, reader_of(data), sail_hot_rows=1000) as system:
        yield system


def written(data: str, org: UUID, contents: list[int], table: HotTable | None = None) -> HotTable:
    """A hot table with a row a block."""
    made = table or replace(hot_table(), org_id=org)
    with psycopg.connect(data, autocommit=True) as connection:
        ensure(connection, made)
        rows = rows_of([(number, 0, content) for number, content in enumerate(contents)])
        rewrite(connection, {made: rows}, chain(0, len(contents)), replace_from=0)
    return made


def compacted(data: str, table: HotTable, start: int, stop: int, commit: int) -> None:
    with held(data) as moment, psycopg.connect(data, autocommit=True) as connection:
        seq = view_of(moment, table, start=start, stop=stop, commit=0).up_to_seq
        mark_compacted(connection, table, start=start, stop=stop, up_to_seq=seq, commit=commit)


def live(system: SailSystem, table: HotTable | BufferedTable, **more: Any) -> None:
    """Make the table known as `live`."""
    known = Relation("live", table.dataset_uuid, table.dataset_version, 0, hot=True, cold=None)
    system.relations["live"] = replace(known, **more)


def staged(system: SailSystem) -> set[str]:
    return {path.name for path in (system.folder / "sail").rglob("*.parquet")}


async def rows(system: SailSystem, text: str, **more: Any) -> list[tuple[Any, ...]]:
    result = await system.engine.run(system.query(text, **more))
    assert result.engine == "sail"
    assert result.table is not None
    return [tuple(row.values()) for row in result.table.to_pylist()]


async def test_a_hot_table_is_read_with_its_types_and_for_its_own_organisation_only(
    system: SailSystem, data: str
) -> None:
    table = written(data, system.org_id, [5, 6, 7])
    live(system, table)
    result = await system.engine.run(system.query("SELECT * FROM live WHERE content > 5 ORDER BY content"))
    assert result.table is not None
    assert result.table.to_pylist() == [
        {"block_number": 1, "position": 0, "content": 6},
        {"block_number": 2, "position": 0, "content": 7},
    ]
    assert {column.name: column.type for column in result.columns} == COLUMNS
    with pytest.raises(Unavailable, match="nothing has been written"):
        await rows(system, "SELECT count(*) AS n FROM live", org_id=uuid4())
    with psycopg.connect(data) as admin:
        idle = admin.execute("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'").fetchone()
    assert idle == (0,), "no snapshot is held when the answer is there"
    assert not staged(system), "no row stays in the sandbox's folder"


async def test_a_buffered_dataset_shows_its_own_columns_and_its_own_organisations_rows(
    system: SailSystem, data: str
) -> None:
    columns = (Column("k", "text", nullable=False), Column("content", "bigint", nullable=True))
    table = BufferedTable(uuid4(), uuid4(), system.org_id, Declaration(columns, ("k",), ()))
    with psycopg.connect(data, autocommit=True) as admin:
        make_buffered(admin, table)
        for org, key, content in ((system.org_id, "a", 5), (system.org_id, "b", None), (uuid4(), "a", 1000)):
            row = sql.SQL(
                "INSERT INTO {} (org_id, producer_task_id, producer_attempt, publish_id, publish_seq, updated_at,"
                " k, content) VALUES (%s, gen_random_uuid(), 1, gen_random_uuid(), 1, now(), %s, %s)"
            )
            admin.execute(row.format(table.identifier), (org, key, content))
    live(system, table)
    assert await rows(system, "SELECT * FROM live ORDER BY k") == [("a", 5), ("b", None)]
    assert await rows(system, "SELECT count(*) AS n FROM live WHERE k = 'a'") == [(1,)]
    with pytest.raises(CannotRun):
        await rows(system, "SELECT org_id FROM live")
    with pytest.raises(Unavailable, match="nothing has been written"):
        await rows(system, "SELECT k FROM live", org_id=uuid4())


async def test_hot_and_cold_rows_are_one_table_without_overlap_or_hole(system: SailSystem, data: str) -> None:
    """Blocks 0 to 5 were compacted in commit 1, then 2 was written again; the file has all six, 2 with its old row."""
    table = written(data, system.org_id, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    compacted(data, table, 0, 6, commit=1)
    old = rows_of([(number, 0, number) for number in range(6)])
    cold = system.add("file", old, COLUMNS).cold
    assert cold is not None
    with psycopg.connect(data, autocommit=True) as connection:
        rewrite(connection, {table: rows_of([(2, 0, 22)])}, chain(2, 1))
    live(system, table, cold=cold, commit=1)
    everything = [(n, 22 if n == 2 else n) for n in range(10)]
    assert await rows(system, "SELECT block_number, content FROM live ORDER BY block_number") == everything
    assert await rows(system, "SELECT count(*) AS n, max(content) AS m FROM live WHERE block_number < 4") == [(4, 22)]
    before = replace(cold, pin=(cold.pin[0], 0), files=())
    live(system, table, cold=before)  # a reader of the commit before: all rows are hot
    assert await rows(system, "SELECT count(*) AS n FROM live") == [(10,)]
    with psycopg.connect(data, autocommit=True) as connection:
        rewrite(connection, {table: rows_of([])}, [], replace_from=5)  # a reorg takes 5 and all later blocks back
    live(system, table, cold=cold, commit=1)
    assert await rows(system, "SELECT max(block_number) AS m FROM live") == [(4,)]


async def test_of_files_that_another_generation_replaced_in_part_only_the_rest_is_read(
    system: SailSystem, data: str
) -> None:
    table = written(data, system.org_id, [0, 1, 2, 3])
    compacted(data, table, 0, 3, commit=1)
    newer = system.add("newer", rows_of([(2, 0, 20)]), COLUMNS).cold
    older = system.add("older", rows_of([(n, 0, n) for n in range(6)]), COLUMNS).cold
    assert newer is not None
    assert older is not None
    live(system, table, cold=replace(newer, cut={(Range(0, 1), Range(5, 6)): older.files}), commit=1)
    assert await rows(system, "SELECT block_number, content FROM live ORDER BY block_number") == [
        (0, 0),
        (2, 20),
        (3, 3),
        (5, 5),
    ]


async def test_values_of_every_type_are_read_as_spark_reads_them(system: SailSystem, data: str) -> None:
    schema = pa.schema(
        [
            ("block_number", pa.int64()),
            ("small", pa.int16()),
            ("t", pa.string()),
            ("b", pa.binary()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("d", pa.decimal128(38, 5)),
            ("yes", pa.bool_()),
            wide("huge", "numeric(78,0)"),
            wide("doc", "jsonb"),
        ]
    )
    values: list[list[Any]] = [
        [0, -5, "ä'\"\\", b"\x00\xff", date(1, 1, 1), datetime(1, 1, 1, tzinfo=UTC), Decimal("-1.00001"), True],
        [1, None, "", b"", date(9999, 12, 31), datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC), Decimal(10**32), False],
        [2, 7, None, None, None, None, None, None],
    ]
    more: list[list[Any]] = [[str(2**256 - 1), '{"a": 1}'], ["0", "[]"], [None, None]]
    given = [tuple(row + rest) for row, rest in zip(values, more, strict=True)]
    table = replace(hot_table(schema, ("block_number",)), org_id=system.org_id)
    with psycopg.connect(data, autocommit=True) as connection:
        ensure(connection, table)
        listed = [dict(zip(schema.names, row, strict=True)) for row in given]
        rewrite(connection, {table: pa.Table.from_pylist(listed, schema)}, chain(0, 3), replace_from=0)
    live(system, table)
    assert await rows(system, "SELECT * FROM live ORDER BY block_number") == given
    assert await rows(system, "SELECT block_number FROM live WHERE d < 0.0 AND small = -5") == [(0,)]


async def test_a_write_between_the_snapshot_and_the_answer_changes_nothing(
    system: SailSystem, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = written(data, system.org_id, [1, 2, 3]), written(data, system.org_id, [1, 2, 3])
    live(system, first)
    system.relations["other"] = replace(
        system.relations["live"], name="other", dataset_uuid=second.dataset_uuid, dataset_version=second.dataset_version
    )
    copied = hot_tables.copied

    def and_write(*given: Any) -> Any:
        columns = copied(*given)
        for table in (first, second):
            written(data, system.org_id, [1, 2, 3, 4], table)
        return columns

    monkeypatch.setattr(tables_module, "copied", and_write)
    text = "SELECT (SELECT count(*) AS n FROM live) AS a, (SELECT count(*) AS n FROM other) AS b"
    assert await rows(system, text) == [(3, 3)]
    monkeypatch.undo()
    assert await rows(system, text) == [(4, 4)]


SCANS = {
    "SELECT content AS n FROM live WHERE content > 6": [7, 8],
    "SELECT content AS n FROM live WHERE 6 < content AND content <> 8": [7],
    "SELECT content AS n FROM live l WHERE l.content BETWEEN 6 AND 7": [6, 7],
    "SELECT content AS n FROM live WHERE content IN (5, 8)": [5, 8],
    "SELECT content AS n FROM live WHERE content = 5 OR content = 8": [5, 8],
    "SELECT content AS n FROM live WHERE content > 7 UNION ALL SELECT content FROM live WHERE content < 6": [5, 8],
    "WITH x AS (SELECT content FROM live) SELECT content AS n FROM x WHERE content > 7": [8],
    "SELECT a.content AS n FROM live a JOIN live b USING (block_number) WHERE a.content = 8 AND b.content > 7": [8],
    "SELECT content AS n FROM live WHERE content < (SELECT max(content) AS m FROM live WHERE content < 8)": [5, 6],
    "SELECT content AS n FROM live WHERE block_number >= 1 AND block_number < 3": [6, 7],
    "SELECT f.id AS n FROM few f LEFT JOIN live l ON f.id = l.content AND l.content > 6": [5, 8, 9],
    "SELECT f.id AS n FROM few f LEFT JOIN live l ON f.id = l.content WHERE l.content IS NULL": [9],
}


async def test_conditions_that_postgres_applies_never_drop_a_row_that_counts(system: SailSystem, data: str) -> None:
    live(system, written(data, system.org_id, [5, 6, 7, 8]))
    system.add("few", pa.table({"id": pa.array([5, 8, 9], pa.int64())}), {"id": "bigint"})
    for text, found in SCANS.items():
        assert sorted(row[0] for row in await rows(system, text)) == found, text


async def test_a_copy_has_only_what_the_query_needs_and_one_that_is_too_large_is_left_to_spark(
    system: SailSystem, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(system, written(data, system.org_id, list(range(1500))))
    before = staged(system)
    with pytest.raises(CannotRun, match="large"):
        await rows(system, "SELECT max(content) AS m FROM live")
    assert staged(system) == before
    sizes: list[tuple[list[str], int]] = []
    copied = hot_tables.copied

    def and_look(*given: Any) -> Any:
        columns = copied(*given)
        sizes.append(([column.name for column in columns], pq.read_metadata(given[3]).num_rows))
        return columns

    monkeypatch.setattr(tables_module, "copied", and_look)
    for condition in ("content < 10", "block_number < 10", "position = 0 AND content <= 9"):
        found = await rows(system, f"SELECT max(content) AS m FROM live WHERE {condition}")  # noqa: S608
        assert found == [(9,)]
    assert sizes == [
        (["block_number", "content"], 10),
        (["block_number", "content"], 10),
        (["block_number", "position", "content"], 10),
    ]


FILTERED = pa.table(
    {
        "n": pa.array([1, 2, None, 4, -5], pa.int64()),
        "small": pa.array([1, 2, 3, None, 5], pa.int16()),
        "d": pa.array(
            [Decimal("1.50"), Decimal("2.25"), None, Decimal("-1.00"), Decimal("99.99")], pa.decimal128(10, 2)
        ),
        "t": ["a", "B", None, "", "ä"],
        "b": [True, False, None, True, False],
        "e": pa.array([4, 2, 1, 4, None], pa.int64()),
    }
)
FILTERED_TYPES = {
    "n": "bigint",
    "small": "smallint",
    "d": "decimal(10,2)",
    "t": "string",
    "b": "boolean",
    "e": "bigint",
}
FILTERS = [
    "n = 2", "n <> 2", "n > 1.5", "n <= 1.5", "n = 1.5", "n <> 1.5", "n < 99999999999999999999",
    "n > 99999999999999999999",
    "small < 40000", "small = 40000", "small >= -40000", "n IN (1, 4, 7)", "n IN (1.5)", "NOT n IN (1, 2)", "n IS NULL",
    "n IS NOT NULL AND t <> 'a'", "d = 1.5", "d > 1.505", "d < 1.505", "d >= 2.25 OR n = 4", "d = 123456789012.5",
    "t < 'a'", "t >= 'a'", "t IN ('a', '')", "b = true", "NOT b = true", "n = e", "n < e", "n >= e OR t = 'ä'",
    "NOT (n = 1 AND NOT (t = 'B' OR b = false))",
]  # fmt: skip


async def test_filters_of_a_dag_pass_the_rows_that_they_pass_elsewhere(system: SailSystem) -> None:
    plain = system.add("plain", FILTERED, FILTERED_TYPES, files=2)
    for text in FILTERS:
        tree = parse_where(text)
        system.relations["seen"] = replace(plain, name="seen", filters=(tree,))
        kept = [tuple(row.values()) for row in FILTERED.to_pylist() if holds(tree, row)]
        assert sorted(await rows(system, "SELECT * FROM seen"), key=str) == sorted(kept, key=str), text


async def test_a_row_is_visible_if_it_passes_any_filter_and_other_filters_are_left_to_spark(
    system: SailSystem,
) -> None:
    times = pa.table(
        {
            "n": pa.array([1, 2, 3], pa.int64()),
            "x": [1.0, float("nan"), 3.0],
            "day": [date(2024, 1, 1)] * 3,
            "at": [datetime(2024, 1, 1, tzinfo=UTC)] * 3,
        }
    )
    types = {"n": "bigint", "x": "double", "day": "date", "at": "timestamp"}
    plain = system.add("plain", times, types)
    both = (parse_where("n = 1"), parse_where("n > 2"))
    system.relations["seen"] = replace(plain, name="seen", filters=both)
    assert sorted(await rows(system, "SELECT n FROM seen")) == [(1,), (3,)]
    assert await rows(system, "SELECT count(*) AS c FROM seen WHERE n < 3") == [(1,)]
    for text in ("x > 1", "day = '2024-01-01'", "at > '2023-01-01'", "n = '1'", "nowhere = 1", "x = n"):
        system.relations["seen"] = replace(plain, name="seen", filters=(parse_where(text),))
        with pytest.raises(CannotRun, match="filter"):
            await rows(system, "SELECT n FROM seen")


async def test_hot_rows_are_filtered_too_and_their_files_have_names_of_one_query(system: SailSystem, data: str) -> None:
    table = written(data, system.org_id, list(range(10)))
    compacted(data, table, 0, 5, commit=1)
    cold = system.add("file", rows_of([(n, 0, n) for n in range(5)]), COLUMNS).cold
    before = staged(system)
    live(system, table, cold=cold, commit=1, filters=(parse_where("content >= 3 AND block_number < 8"),))
    assert await rows(system, "SELECT content FROM live ORDER BY content") == [(n,) for n in range(3, 8)]
    assert len(staged(system) - before) == 1, "the file for later queries; neither the copy nor this query's name of it"


async def test_a_table_without_files_has_no_rows(system: SailSystem) -> None:
    known = system.add("none", FILTERED, FILTERED_TYPES)
    assert known.cold is not None
    system.relations["none"] = replace(known, cold=replace(known.cold, files=()))
    assert await rows(system, "SELECT n, t FROM none") == []
    assert await rows(system, "SELECT count(*) AS c, max(n) AS m FROM none") == [(0, None)]
