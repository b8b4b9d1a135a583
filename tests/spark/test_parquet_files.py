"""Parquet files of other writers: types that Spark lacks are read if every value fits, or the file is refused."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracelake.data.files.shape import Shape
from tracelake.data.files.text_files import infer_columns, read_table
from tracelake.errors import WorkFailed

UTC_NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
NOON = UTC_NOON.replace(tzinfo=None)
DAY = dt.date(2025, 1, 1)
FITS: list[tuple[pa.DataType, Any, str, Any]] = [
    (pa.uint8(), 255, "smallint", 255),
    (pa.uint8(), 127, "tinyint", 127),
    (pa.uint16(), 65_535, "int", 65_535),
    (pa.uint32(), 2**32 - 1, "bigint", 2**32 - 1),
    (pa.uint32(), 7, "int", 7),
    (pa.uint64(), 2**63 - 1, "bigint", 2**63 - 1),
    (pa.uint64(), 2**64 - 1, "decimal(20,0)", Decimal(2**64 - 1)),
    (pa.uint64(), 5, "decimal(3,2)", Decimal("5.00")),
    (pa.int32(), -5, "bigint", -5),
    (pa.int64(), -5, "tinyint", -5),
    (pa.int64(), 2**53, "double", 2.0**53),
    (pa.float16(), 1.5, "float", 1.5),
    (pa.float32(), 0.5, "double", 0.5),
    (pa.float64(), 3.0, "bigint", 3),
    (pa.decimal128(10, 2), Decimal("1.50"), "decimal(38,4)", Decimal("1.5000")),
    (pa.decimal32(5, 2), Decimal("1.50"), "decimal(4,1)", Decimal("1.5")),
    (pa.decimal256(76, 0), Decimal(10**37), "decimal(38,0)", Decimal(10**37)),
    (pa.decimal64(12, 2), Decimal("7.00"), "bigint", 7),
    (pa.binary(), b"\xff", "binary", b"\xff"),
    (pa.large_binary(), b"\xff", "binary", b"\xff"),
    (pa.binary(2), b"\xff\x00", "binary", b"\xff\x00"),
    (pa.binary_view(), b"\xff", "binary", b"\xff"),
    (pa.binary(), "é".encode(), "string", "é"),
    (pa.large_string(), "é", "string", "é"),
    (pa.string_view(), "é", "string", "é"),
    (pa.dictionary(pa.int8(), pa.large_string()), "é", "string", "é"),
    (pa.dictionary(pa.int32(), pa.string()), "", "string", ""),
    (pa.uuid(), uuid.UUID(int=1), "binary", uuid.UUID(int=1).bytes),
    (pa.bool_(), True, "boolean", True),
    (pa.date32(), DAY, "date", DAY),
    (pa.date64(), DAY, "date", DAY),
    (pa.timestamp("s"), NOON, "timestamp_ntz", NOON),
    (pa.timestamp("ms"), NOON, "timestamp", UTC_NOON),
    (pa.timestamp("ns"), NOON, "timestamp_ntz", NOON),
    (pa.timestamp("ns", "UTC"), UTC_NOON, "timestamp", UTC_NOON),
    (pa.timestamp("us", "Europe/Berlin"), UTC_NOON, "timestamp", UTC_NOON),
    (pa.null(), None, "bigint", None),
]
VALUE_TOO_FAR: list[tuple[pa.DataType, Any, str, str]] = [
    (pa.uint64(), 2**63, "bigint", "9223372036854775808' (uint64)"),
    (pa.uint32(), 2**31, "int", "2147483648' (uint32)"),
    (pa.uint64(), 2**64 - 1, "decimal(19,0)", "18446744073709551615' (uint64)"),
    (pa.int64(), 128, "tinyint", "128' (int64)"),
    (pa.int64(), 2**53 + 1, "double", "9007199254740993' (int64)"),
    (pa.float64(), 1.5, "bigint", "1.5' (double)"),
    (pa.float64(), float("nan"), "bigint", "nan' (double)"),
    (pa.decimal128(10, 2), Decimal("1.55"), "decimal(10,1)", "1.55' (decimal128(10, 2))"),
    (pa.decimal256(76, 0), Decimal(10**38), "decimal(38,0)", f"{10**38}' (decimal256(76, 0))"),
    (pa.binary(), b"\xff", "string", "b'\\\\xff'"),
    (pa.timestamp("ns"), 1001, "timestamp", "1001' (timestamp[ns])"),
]
TYPES_APART = [
    (pa.float64(), 0.5, "float", "double"),
    (pa.float64(), 0.5, "decimal(10,2)", "double"),
    (pa.decimal128(10, 2), Decimal("1.50"), "double", "decimal"),
    (pa.large_string(), "0xff", "binary", "large_string"),
    (pa.string(), "7", "bigint", "string"),
    (pa.int64(), 7, "string", "int64"),
    (pa.int64(), 7, "timestamp", "int64"),
    (pa.int64(), 1, "boolean", "int64"),
    (pa.bool_(), True, "int", "bool"),
    (pa.date32(), DAY, "timestamp", "date32"),
    (pa.timestamp("us"), NOON, "date", "timestamp"),
    (pa.timestamp("us", "UTC"), UTC_NOON, "timestamp_ntz", "timestamp[us, tz=UTC]"),
    (pa.list_(pa.int64()), [1], "string", "list"),
    (pa.time64("us"), dt.time(1), "bigint", "time64"),
]
INFERRED = [
    (pa.uint8(), "smallint"),
    (pa.uint16(), "int"),
    (pa.uint32(), "bigint"),
    (pa.uint64(), "decimal(20,0)"),
    (pa.int8(), "tinyint"),
    (pa.int64(), "bigint"),
    (pa.float16(), "float"),
    (pa.float64(), "double"),
    (pa.decimal256(30, 2), "decimal(30,2)"),
    (pa.binary(32), "binary"),
    (pa.large_binary(), "binary"),
    (pa.large_string(), "string"),
    (pa.dictionary(pa.int8(), pa.string()), "string"),
    (pa.timestamp("ns"), "timestamp_ntz"),
    (pa.timestamp("s", "Europe/Berlin"), "timestamp"),
    (pa.date64(), "date"),
    (pa.bool_(), "boolean"),
    (pa.null(), "string"),
]


def written(folder: Path, **columns: pa.Array) -> Path:
    path = folder / "a.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def read(path: Path, columns: dict[str, str], **more: Any) -> tuple[pa.Table, int]:
    return read_table(path, "in/a.parquet", Shape("parquet", columns, **more))


@pytest.mark.parametrize(("have", "value", "kind", "expected"), FITS)
def test_a_fitting_value_is_read_unchanged(
    tmp_path: Path, have: pa.DataType, value: Any, kind: str, expected: Any
) -> None:
    table, left_out = read(written(tmp_path, v=pa.array([value, None], have)), {"v": kind})
    assert (table["v"].to_pylist(), left_out) == ([expected, None], 0)


@pytest.mark.parametrize(("have", "value", "kind", "message"), VALUE_TOO_FAR)
def test_the_error_for_a_misfit_names_file_column_and_row(
    tmp_path: Path, have: pa.DataType, value: Any, kind: str, message: str
) -> None:
    values = pa.array([None, None, value], have)
    path = written(tmp_path, v=values, n=pa.array([1, 2, 3], pa.uint64()))
    with pytest.raises(WorkFailed) as refused:
        read(path, {"v": kind})
    assert refused.value.message.startswith("in/a.parquet: row 3: v is ")
    assert message in refused.value.message
    assert refused.value.message.endswith(f"which is no {kind}")
    table, left_out = read(path, {"n": "int", "v": kind}, bad_lines=1)
    assert (table.to_pylist(), left_out) == ([{"n": 1, "v": None}, {"n": 2, "v": None}], 1)


@pytest.mark.parametrize(("have", "value", "kind", "message"), TYPES_APART)
def test_a_lossy_conversion_is_refused_with_both_types(
    tmp_path: Path, have: pa.DataType, value: Any, kind: str, message: str
) -> None:
    path = written(tmp_path, v=pa.array([value], have))
    with pytest.raises(WorkFailed, match=r"in/a.parquet: v is ") as refused:
        read(path, {"v": kind}, bad_lines=9)
    assert refused.value.message.startswith(f"in/a.parquet: v is {message}")
    assert f"not read as {kind}" in refused.value.message


@pytest.mark.parametrize(("have", "kind"), INFERRED)
def test_without_columns_a_type_that_holds_every_value_is_chosen(tmp_path: Path, have: pa.DataType, kind: str) -> None:
    path = written(tmp_path, v=pa.nulls(1, have) if have != pa.uint64() else pa.array([2**64 - 1], have))
    assert infer_columns(path, "in/a.parquet", Shape("parquet", {})) == {"v": kind}
    assert read(path, {"v": kind})[0].num_rows == 1


@pytest.mark.parametrize("have", [pa.list_(pa.int64()), pa.decimal256(50, 2), pa.time32("s"), pa.duration("s")])
def test_an_unsupported_type_is_refused_by_name_when_types_are_inferred(tmp_path: Path, have: pa.DataType) -> None:
    path = written(tmp_path, n=pa.array([1]), odd=pa.nulls(1, have))
    with pytest.raises(WorkFailed) as refused:
        infer_columns(path, "in/a.parquet", Shape("parquet", {}))
    assert refused.value.message.startswith(f"in/a.parquet: odd is {pq.read_schema(path).field('odd').type}, ")


def test_columns_are_matched_by_name_in_the_requested_order_and_others_are_ignored(tmp_path: Path) -> None:
    path = written(tmp_path, c=pa.array(["x"]), a=pa.array([1]), more=pa.array([0]), b=pa.array([2]))
    table, _ = read(path, {"a": "int", "b": "bigint", "c": "string"})
    assert table.to_pydict() == {"a": [1], "b": [2], "c": ["x"]}
    assert table.column_names == ["a", "b", "c"]


def test_a_column_name_with_a_dot_does_not_address_a_struct_field(tmp_path: Path) -> None:
    path = written(tmp_path, **{"a": pa.array([{"b": 1}]), "a.b": pa.array([7])})
    assert read(path, {"a.b": "int"})[0].to_pydict() == {"a.b": [7]}
    path = written(tmp_path, a=pa.array([{"b": 1}]))
    with pytest.raises(WorkFailed, match=r"there is no column a\.b"):
        read(path, {"a.b": "int"})


def test_a_column_that_a_file_lacks_is_refused_unless_it_is_optional(tmp_path: Path) -> None:
    path = written(tmp_path, a=pa.array([1, 2]))
    with pytest.raises(WorkFailed, match=r"^in/a.parquet: there is no column hash, at$") as refused:
        read(path, {"a": "int", "hash": "binary", "at": "timestamp"})
    assert "`optional`" in str(refused.value.hint)
    table, _ = read(path, {"hash": "binary", "a": "int"}, optional=("hash",))
    assert table.to_pydict() == {"hash": [None, None], "a": [1, 2]}
    assert table.schema.field("hash").type == pa.binary()
    assert read(path, {"hash": "binary"}, optional=("hash",))[0].to_pydict() == {"hash": [None, None]}


def test_two_columns_with_the_same_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(WorkFailed, match="two columns are called a"):
        read(path, {"a": "int"})
    with pytest.raises(WorkFailed, match="two columns have one name"):
        infer_columns(path, "in/a.parquet", Shape("parquet", {}))


@pytest.mark.parametrize("store_schema", [False, True])
def test_int96_times_do_not_overflow(tmp_path: Path, store_schema: bool) -> None:
    """Nanoseconds end in 2262: read as such, the year 9999 would be 1816."""
    path = tmp_path / "a.parquet"
    far = [dt.datetime(year, 12, 31, tzinfo=dt.UTC) for year in (1, 1969, 2025, 2262, 9999)]
    table = pa.table({"at": pa.array([*far, None], pa.timestamp("us", "UTC"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=store_schema)
    assert read(path, {"at": "timestamp"})[0].to_pydict() == {"at": [*far, None]}


@pytest.mark.parametrize("store_schema", [False, True])
def test_int96_times_are_not_truncated_to_microseconds(tmp_path: Path, store_schema: bool) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"at": pa.array([1000, None, 1001, -1001, -1000], pa.timestamp("ns"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=store_schema)
    with pytest.raises(WorkFailed, match=r"row 3: at is '1001' \(timestamp\[ns\]\), which is no timestamp_ntz"):
        read(path, {"at": "timestamp_ntz"})
    readable, left_out = read(path, {"at": "timestamp_ntz"}, bad_lines=2)
    assert (readable["at"].cast(pa.int64()).to_pylist(), left_out) == ([1, None, -1], 2)


@pytest.mark.parametrize("day", [2_816_788, 2_232_400])  # in the years 3000 and 1400, beyond the range of nanoseconds
def test_int96_times_beyond_the_range_of_nanoseconds_are_not_truncated(tmp_path: Path, day: int) -> None:
    path, plain = tmp_path / "a.parquet", pa.table({"at": pa.array([1_234_567_001], pa.timestamp("ns"))})
    pq.write_table(
        plain, path, use_deprecated_int96_timestamps=True, use_dictionary=False, compression="none", store_schema=False
    )
    time, file = (1_234_567_001).to_bytes(8, "little"), path.read_bytes()
    assert file.count(time + (2_440_588).to_bytes(4, "little")) == 1
    path.write_bytes(file.replace(time + (2_440_588).to_bytes(4, "little"), time + day.to_bytes(4, "little")))
    with pytest.raises(WorkFailed, match=r"row 1: at is .*which is no timestamp_ntz"):
        read(path, {"at": "timestamp_ntz"})


def test_misfits_are_found_among_many_rows_and_groups(tmp_path: Path) -> None:
    numbers = list(range(50_000))
    for odd in (0, 7, 24_999, 25_000, 49_999):
        numbers[odd] = 2**63 + odd
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"v": pa.array(numbers, pa.uint64())}), path, row_group_size=7_000)
    with pytest.raises(WorkFailed, match=r"row 1: v is '9223372036854775808'"):
        read(path, {"v": "bigint"})
    table, left_out = read(path, {"v": "bigint"}, bad_lines=5)
    assert (table["v"].to_pylist(), left_out) == ([number for number in numbers if number < 2**63], 5)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """The schema of a file calls a column text, but nothing has checked it."""
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"], pa.binary()).buffers())
    with pytest.raises(WorkFailed, match=r"row 1: v is .*which is no string"):
        read(written(tmp_path, v=broken), {"v": "string"})


@pytest.mark.parametrize("body", [b"", b"PAR1", b"id,n\n1,2\n", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_file_that_is_not_parquet_is_refused_by_name(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(body)
    with pytest.raises(WorkFailed, match=r"^in/a.parquet cannot be read as Parquet: "):
        read(path, {"v": "int"})
    with pytest.raises(WorkFailed, match=r"^in/a.parquet cannot be read as Parquet: "):
        infer_columns(path, "in/a.parquet", Shape("parquet", {}))


def test_a_file_damaged_in_the_middle_is_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, v=pa.array(range(10_000), pa.uint64()))
    body = bytearray(path.read_bytes())
    body[40:4000] = bytes(3960)
    path.write_bytes(body)
    with pytest.raises(WorkFailed, match=r"^in/a.parquet cannot be read as Parquet: "):
        read(path, {"v": "bigint"})
