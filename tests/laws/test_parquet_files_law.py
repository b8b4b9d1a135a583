"""What is read from a Parquet file equals what was written, or the file is refused by name: any type read as any other.

Values are compared by what they mean, worked out here from Arrow's own storage: numbers as fractions, times as
nanoseconds, text as its bytes.
"""

from __future__ import annotations

import tempfile
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.data.files.fit_column import spark_type
from tracelake.data.files.shape import Shape, arrow_type
from tracelake.data.files.text_files import read_table
from tracelake.errors import WorkFailed

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
KINDS = (
    *("bigint", "int", "smallint", "tinyint", "double", "float", "boolean", "string", "binary", "date"),
    *("timestamp", "timestamp_ntz", "decimal(20,0)", "decimal(5,2)", "decimal(38,0)", "decimal(38,38)", "decimal(1,0)"),
)


def whole(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    near = [item + off for item in (0, 2**7, 2**15, 2**24, 2**31, 2**53, 2**63) for off in (-1, 0, 1)]
    return st.integers(low, high) | st.sampled_from([item for item in (*near, low, high) if low <= item <= high])


def fractions(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    digits = st.integers(-most, most) | st.integers(-999, 999).map(lambda integer: min(integer * 10**scale, most))
    return digits.filter(lambda digit: abs(digit) <= most).map(lambda item: Decimal(f"{item}e-{scale}"))


HALVES = st.floats(width=16)
PHYSICAL: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((getattr(pa, f"int{bits}")(), whole(bits, signed=True)) for bits in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{bits}")(), whole(bits, signed=False)) for bits in (8, 16, 32, 64)),
    (pa.float16(), HALVES),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats() | whole(64, signed=True).map(float)),
    (pa.decimal32(5, 2), fractions(5, 2)),
    (pa.decimal64(15, 3), fractions(15, 3)),
    (pa.decimal128(38, 2), fractions(38, 2)),
    (pa.decimal128(20, 0), fractions(20, 0)),
    (pa.decimal256(76, 0), fractions(76, 0)),
    (pa.decimal256(40, 38), fractions(40, 38)),
    (pa.bool_(), st.booleans()),
    *((kind, st.text(max_size=4)) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((kind, st.binary(max_size=4)) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    *((pa.timestamp(unit, zone), whole(64, signed=True)) for unit in ("ms", "us", "ns") for zone in (None, "UTC")),
    (pa.timestamp("s"), st.integers(-(10**15), 10**15)),
    (pa.timestamp("us", "Europe/Berlin"), st.integers(-(10**15), 10**15)),
    (pa.dictionary(pa.int16(), pa.large_string()), st.text(max_size=2)),
    (pa.null(), st.none()),
]


@st.composite
def files(draw: st.DrawFn) -> pa.Array:
    have, values = draw(st.sampled_from(PHYSICAL))
    return pa.array(draw(st.lists(values | st.none(), max_size=6)), have)


def stored(folder: str, column: pa.Array) -> tuple[Path, pa.Array]:
    """A file, and the column as Parquet keeps it: it has no seconds, for one."""
    path = Path(folder) / "a.parquet"
    pq.write_table(pa.table({"v": column}), path)
    return path, pq.ParquetFile(path).read()["v"].combine_chunks()


def meaning(column: pa.Array) -> list[Any]:
    have = column.type
    if pa.types.is_timestamp(have):
        scale = 10**9 // PER_SECOND[have.unit]
        return [None if item is None else ("time", item * scale) for item in column.cast(pa.int64()).to_pylist()]
    return [_meaning(item) for item in column.to_pylist()]


def _meaning(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, int | float | Decimal):
        return ("number", Fraction(value))
    return value.encode() if isinstance(value, str) else value


@settings(max_examples=1500, deadline=None)
@given(files(), st.sampled_from(KINDS))
def test_what_is_read_equals_what_was_written_or_the_file_is_refused_by_name(column: pa.Array, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, there = stored(folder, column)
        try:
            table, left_out = read_table(path, "in/a.parquet", Shape("parquet", {"v": kind}))
        except WorkFailed as refused:
            assert refused.message.startswith("in/a.parquet: ")  # noqa: PT017 - one of two ways to keep the law
            assert "v is " in refused.message  # noqa: PT017
            return
    assert left_out == 0
    assert table.schema == pa.schema([("v", arrow_type(kind))])
    assert meaning(table["v"].combine_chunks()) == meaning(there)


@settings(max_examples=500, deadline=None)
@given(files(), st.sampled_from(KINDS))
def test_rows_that_are_left_out_are_those_that_would_be_refused_alone(column: pa.Array, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, there = stored(folder, column)
        shape = Shape("parquet", {"v": kind}, bad_lines=len(column))
        try:
            table, left_out = read_table(path, "in/a.parquet", shape)
        except WorkFailed as refused:
            assert "not read as" in refused.message  # noqa: PT017 - a type, and not a value
            return
        fitting = []
        for number, value in enumerate(meaning(there)):
            alone, _ = stored(folder, there.slice(number, 1))
            try:
                read_table(alone, "in/a.parquet", Shape("parquet", {"v": kind}))
            except WorkFailed:
                continue
            fitting.append(value)
    assert meaning(table["v"].combine_chunks()) == fitting
    assert left_out == len(column) - len(fitting)


@settings(max_examples=500, deadline=None)
@given(files())
def test_a_guessed_type_holds_every_value_but_times_beyond_microseconds(column: pa.Array) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, there = stored(folder, column)
        kind = spark_type(there.type)
        if kind is None:
            assert pa.types.is_decimal(there.type)
            return
        shape = Shape("parquet", {"v": kind}, bad_lines=len(column))
        table, left_out = read_table(path, "in/a.parquet", shape)
    assert left_out == 0 or pa.types.is_timestamp(there.type)
    if left_out == 0:
        assert meaning(table["v"].combine_chunks()) == meaning(there)


@settings(max_examples=300, deadline=None)
@given(st.lists(whole(64, signed=False) | st.none(), max_size=6))
def test_an_unsigned_number_is_refused_only_above_63_bits(numbers: list[int | None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, _ = stored(folder, pa.array(numbers, pa.uint64()))
        table, left_out = read_table(path, "in/a.parquet", Shape("parquet", {"v": "bigint"}, bad_lines=len(numbers)))
    readable = [item for item in numbers if item is None or item < 2**63]
    assert (table["v"].to_pylist(), left_out) == (readable, len(numbers) - len(readable))
