"""Hot tables: created once, widened, never changed; blocks are written completely or not at all, by one writer at a
time.
"""

from __future__ import annotations

import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.spark.hot_rows import Connection, count, made, marks, rows_in
from tests.support.spark.hot_tables import ROWS, block_hash, chain, hot_table, rows_of, unheld
from tests.support.waiting import SECONDS
from tracelake.data.hot import writer
from tracelake.data.hot.extent import Extent, after_write
from tracelake.data.hot.sweep import mark_compacted, sweep
from tracelake.data.hot.tables import HotTable, drop, ensure
from tracelake.data.hot.view import Run, view_of
from tracelake.data.hot.writer import rewrite
from tracelake.data.postgres.column_types import wide
from tracelake.data.statements import statements
from tracelake.errors import BadInput, Conflict, NotFound


@pytest.mark.parametrize("file", ["hot", "follower_outbox", "staging"])
def test_every_statement_has_a_comment_and_can_be_prepared(data: Connection, file: str) -> None:
    for name, statement in statements(file).items():
        assert re.match(rb"-- [A-Z].*[a-z.,:]\n", statement), name
        plain = statement
        while b"%(" in plain:
            start = plain.index(b"%(")
            plain = plain[:start] + b"NULL" + plain[plain.index(b")s", start) + 2 :]
        data.execute(b"PREPARE p_" + name.encode() + b" AS " + plain.rstrip().rstrip(b";"))


def test_concurrent_creations_of_a_table_make_one(data_db: str, data: Connection) -> None:
    table = hot_table()
    together = threading.Barrier(6)

    def make(_: int) -> None:
        with psycopg.connect(data_db, autocommit=True) as connection:
            together.wait(timeout=SECONDS)
            ensure(connection, table)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(make, range(6)))
    assert data.execute("SELECT table_name, number_column FROM trace_meta.dataset_tables").fetchall() == [
        (table.name, "block_number")
    ]


def test_columns_can_be_added_but_not_changed(data: Connection) -> None:
    table = hot_table()
    ensure(data, table)
    rewrite(data, {table: rows_of([(0, 0, 7)])}, chain(0, 1))
    wider = replace(table, schema=ROWS.append(pa.field("memo", pa.string())))
    ensure(data, wider)
    ensure(data, wider)
    ensure(data, table)  # a writer that does not know the column yet
    assert rows_in(data, wider) == [(0, 0, 7, None)]
    required = wider.schema.append(pa.field("must", pa.int64(), nullable=False))
    other_type = ROWS.set(2, pa.field("content", pa.string()))
    for changed in (
        replace(table, schema=required),
        replace(table, schema=other_type),
        replace(table, schema=ROWS.remove(2).set(1, pa.field("place", pa.int32())), unique_key=("block_number",)),
        replace(table, unique_key=("block_number",)),
        replace(table, org_id=uuid4()),
    ):
        with pytest.raises(Conflict) as refused:
            ensure(data, changed)
        assert refused.value.hint
    assert rows_in(data, wider) == [(0, 0, 7, None)]


@pytest.mark.parametrize(
    "field",
    [
        pa.field("x", pa.list_(pa.int64())),
        pa.field("x", pa.struct([("y", pa.int64())])),
        pa.field("x", pa.uint64()),
        pa.field("x", pa.timestamp("ns", "UTC")),
        pa.field("x", pa.timestamp("us", "Europe/Berlin")),
        pa.field("x", pa.int64(), metadata={"postgres": "jsonb"}),
        wide("x", "text; DROP TABLE hot.x"),
        pa.field('x" int); DROP TABLE y; --', pa.int64()),
        pa.field("Upper", pa.int64()),
        pa.field("block_number", pa.int64()),
    ],
)
def test_a_type_that_a_table_cannot_store_is_refused_by_name(field: pa.Field) -> None:
    with pytest.raises(BadInput) as refused:
        hot_table(ROWS.append(field))
    assert refused.value.where


def test_a_key_or_number_that_is_no_column_is_refused() -> None:
    for key in ((), ("nothing",), ("position", "position")):
        with pytest.raises(BadInput):
            hot_table(unique_key=key)
    with pytest.raises(BadInput):
        HotTable(uuid4(), uuid4(), uuid4(), ROWS, ("position",), number_column="position")


def test_a_dropped_table_leaves_no_state_for_the_next_of_its_name(data: Connection) -> None:
    table = hot_table()
    for _ in range(2):
        ensure(data, table)
        rewrite(data, {table: rows_of([(0, 0, 7)])}, chain(0, 3))
        mark_compacted(data, table, start=0, stop=1, up_to_seq=10**9, commit=1)
        sweep(data, table, timedelta(0))
        drop(data, table)
        ensure(data, table)
        assert rows_in(data, table) == []
        assert count(data, "trace_meta.hot_blocks") == count(data, "trace_meta.hot_swept") == 0
        drop(data, table)
        drop(data, table)
        assert count(data, "trace_meta.dataset_tables") == 0
        with pytest.raises(NotFound):
            rewrite(data, {table: rows_of([])}, chain(0, 1))


def test_blocks_without_rows_are_covered(data: Connection, data_db: str) -> None:
    table = made(data)
    rewrite(data, {table: rows_of([])}, chain(5, 3))
    with unheld(data_db) as now:
        view = view_of(now, table, start=0, stop=100, commit=0)
    assert view.runs == (Run(5, 8),)


def test_only_the_given_numbers_are_replaced(data: Connection) -> None:
    table = made(data)
    rewrite(data, {table: rows_of([(n, 0, n) for n in range(5)])}, chain(0, 5))
    before = marks(data)
    assert rewrite(data, {table: rows_of([(2, 0, 20), (2, 1, 21)])}, chain(2, 1)) == 2
    assert rows_in(data, table) == [(0, 0, 0), (1, 0, 1), (2, 0, 20), (2, 1, 21), (3, 0, 3), (4, 0, 4)]
    after = marks(data)
    assert [number for number in before if after[number] > before[number]] == [2]


def test_replacing_from_a_number_removes_all_rows_above_it(data: Connection) -> None:
    table = made(data)
    rewrite(data, {table: rows_of([(n, 0, n) for n in range(5)])}, chain(0, 5))
    rewrite(data, {table: rows_of([(3, 0, 30)])}, chain(3, 1, "b", block_hash(2, "a")), replace_from=3)
    assert rows_in(data, table) == [(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 0, 30)]
    assert list(marks(data)) == [0, 1, 2, 3]
    rewrite(data, {table: rows_of([])}, [], replace_from=1)
    assert rows_in(data, table) == [(0, 0, 0)]
    with pytest.raises(Conflict, match="block 1 was removed by a reorg"):
        rewrite(data, {table: rows_of([])}, chain(4, 1))
    with pytest.raises(BadInput):
        rewrite(data, {table: rows_of([])}, chain(2, 1), replace_from=1)


@pytest.mark.parametrize(
    ("rows", "blocks", "kind"),
    [
        ([(9, 0, 1)], chain(0, 1), BadInput),
        ([(0, 0, 1)], [], BadInput),
        ([(1, 0, 1), (1, 0, 2)], chain(1, 1), BadInput),
        ([], chain(0, 1) * 2, BadInput),
        ([], [*chain(0, 1), *chain(1, 1, "b")], Conflict),
        ([], chain(11, 1, "b"), Conflict),
        ([], chain(9, 1, "b"), Conflict),
    ],
)
def test_inconsistent_writes_are_refused_and_nothing_is_stored(
    data: Connection, rows: list[Any], blocks: list[Any], kind: type[Exception]
) -> None:
    table = made(data)
    rewrite(data, {table: rows_of([(10, 0, 1)])}, chain(10, 1))
    with pytest.raises(kind):
        rewrite(data, {table: rows_of(rows)}, blocks)
    assert rows_in(data, table) == [(10, 0, 1)]
    assert list(marks(data)) == [10]


def test_a_null_in_the_key_or_other_columns_are_refused(data: Connection) -> None:
    table = made(data)
    empty = pa.table({"block_number": [0], "position": [None], "content": [1]}, ROWS)
    with pytest.raises(BadInput, match="null value") as refused:
        rewrite(data, {table: empty}, chain(0, 1))
    assert refused.value.where == "position"
    for wrong in (empty.drop_columns(["content"]), empty.set_column(2, "content", pa.array(["x"]))):
        with pytest.raises(BadInput) as refused:
            rewrite(data, {table: wrong}, chain(0, 1))
        assert refused.value.where == table.name
    assert marks(data) == {}


@pytest.mark.parametrize("step", ["copy_rows", "_mark", "_set_extents"])
def test_a_connection_cut_at_any_step_leaves_nothing(
    data: Connection, data_db: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tables = [made(data) for _ in range(2)]
    rewrite(data, {table: rows_of([(0, 0, 1)]) for table in tables}, chain(0, 2))
    before = [rows_in(data, table) for table in tables], marks(data)
    real = getattr(writer, step)

    def cut(connection: Connection, *given: Any) -> Any:
        done = real(connection, *given)
        data.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        return done

    monkeypatch.setattr(writer, step, cut)
    new = {table: rows_of([(0, 0, 2), (1, 0, 2)]) for table in tables}
    with pytest.raises(psycopg.OperationalError), psycopg.connect(data_db) as doomed:
        rewrite(doomed, new, chain(0, 2, "b"), replace_from=0)
    assert ([rows_in(data, table) for table in tables], marks(data)) == before


def test_two_writers_of_the_same_tables_never_interleave(data: Connection, data_db: str) -> None:
    tables = [made(data) for _ in range(3)]
    together = threading.Barrier(4)

    def write(writer: int) -> None:
        order = tables if writer % 2 else tables[::-1]
        with psycopg.connect(data_db) as connection:
            together.wait(timeout=SECONDS)
            for turn in range(10):
                content = writer * 100 + turn
                rows = rows_of([(n, 0, content) for n in range(4)])
                rewrite(connection, dict.fromkeys(order, rows), chain(0, 4, f"{content}"), replace_from=0)
                connection.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    left = {content for table in tables for _, _, content in rows_in(data, table)}
    hashes = data.execute("SELECT DISTINCT hash FROM trace_meta.hot_blocks WHERE number = 3").fetchall()
    assert len(left) == 1
    assert [bytes(item) for (item,) in hashes] == [block_hash(3, str(left.pop()))]


TYPES = pa.schema(
    [
        pa.field("block_number", pa.int64()),
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int16()),
        pa.field("middle", pa.int32()),
        pa.field("real", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("words", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("word32", pa.binary(4)),
        pa.field("day", pa.date32()),
        pa.field("moment", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("amount", pa.decimal128(38, 6)),
        pa.field("wider", pa.decimal256(76, 0)),
        wide("u256", "numeric(78,0)"),
        wide("extra", "jsonb"),
    ]
)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 - the local ones
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
VALUES = st.fixed_dictionaries(
    {
        "block_number": st.integers(0, 3),
        "flag": st.booleans() | st.none(),
        "small": st.integers(-(2**15), 2**15 - 1) | st.none(),
        "middle": st.integers(-(2**31), 2**31 - 1) | st.none(),
        "real": st.floats(width=32) | st.none(),
        "double": st.floats() | st.none(),
        "words": TEXTS | st.none() | st.sampled_from(["\\.", "\\N", '"', ""]),
        "raw": st.binary() | st.none(),
        "word32": st.binary(min_size=4, max_size=4) | st.none(),
        "day": st.dates(date(1, 1, 2)) | st.none(),
        "moment": MOMENTS.map(lambda at: at.replace(tzinfo=UTC)) | st.none(),
        "local": MOMENTS | st.none(),
        "amount": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-6")) | st.none(),
        "wider": st.integers(-(10**76) + 1, 10**76 - 1).map(Decimal) | st.none(),
        "u256": st.integers(0, 2**256 - 1).map(str) | st.none(),
        "extra": st.sampled_from(['{"a": [1, "x\\n"]}', "[]", "null"]) | st.none(),
    }
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(listed=st.lists(VALUES, max_size=5))
def test_every_type_and_null_round_trips(data: Connection, listed: list[dict[str, Any]]) -> None:
    schema = TYPES.append(pa.field("position", pa.int32()))
    table = hot_table(schema)
    ensure(data, table)
    rows = [{**row, "position": place} for place, row in enumerate(listed)]
    written = pa.Table.from_pylist(rows, schema)
    rewrite(data, {table: pa.concat_tables([written.slice(1), written.slice(0, 1)])}, chain(0, 4))
    shown = {"u256": "u256::text", "extra": "extra::text", "real": "real::float8"}
    names = ", ".join(shown.get(name, name) for name in schema.names)
    found = data.execute(f"SELECT {names} FROM hot.{table.name} ORDER BY position".encode()).fetchall()  # noqa: S608
    assert [list(map(plain, row)) for row in found] == [list(map(plain, row.values())) for row in written.to_pylist()]
    drop(data, table)


@given(
    st.lists(st.tuples(st.sampled_from(["follow", "cut"]), st.integers(0, 9), st.integers(0, 5)), max_size=20),
)
def test_removed_numbers_are_those_written_and_no_longer_present(steps: list[tuple[str, int, int]]) -> None:
    """Compared with a set of numbers: the current chain, and the highest number ever."""
    extent, there, highest = Extent(), 0, -1
    for verb, depth, length in steps:
        first = there if verb == "follow" else max(0, there - depth)
        numbers = list(range(first, first + length))
        if verb == "follow" and not numbers:
            continue
        extent = after_write(extent, numbers, None if verb == "follow" else first)
        there, highest = first + length, max(highest, first + length - 1)
        gone = [] if extent.gone_from is None else list(range(extent.gone_from, (extent.written_to or 0) + 1))
        assert gone == list(range(there, highest + 1))


def plain(value: Any) -> Any:
    """NaN equals itself here; decimals and bytes by value."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return bytes(value) if isinstance(value, memoryview) else value
