"""What a batch is refused for, and at which line; and that what is taken is what was given. No Spark: seconds."""

from __future__ import annotations

import datetime as dt
import io
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.data.buffered.batch_fault import BatchFault
from tracelake.data.buffered.check_batch import CheckLimits, check_batch
from tracelake.domain.buffered import Column, Declaration

EVERY = Declaration(
    (
        Column("key", "text", nullable=False),
        Column("flag", "boolean"),
        Column("small", "integer"),
        Column("large", "bigint"),
        Column("ratio", "double"),
        Column("raw", "bytes"),
        Column("day", "date"),
        Column("moment", "timestamp"),
        Column("doc", "json"),
        Column("wide", "uint256"),
        Column("price", "decimal(10,2)"),
        Column("must", "integer", nullable=False),
    ),
    ("key",),
)
LIMITS = CheckLimits(line_bytes=2_000, unpacked_bytes=1024 * 1024)
JSONL = "application/jsonl"
PARQUET = "application/vnd.apache.parquet"
STREAM = "application/vnd.apache.arrow.stream"


def checked(body: bytes, content_type: str = JSONL) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = check_batch(body, content_type, EVERY, LIMITS).to_pylist()
    return rows


def fault(body: bytes, content_type: str = JSONL) -> tuple[int | None, str]:
    with pytest.raises(BatchFault) as raised:
        checked(body, content_type)
    return raised.value.line, raised.value.reason


def test_every_type_arrives_as_it_was_written() -> None:
    line = (
        b'{"key":"k","flag":true,"small":-5,"large":9007199254740993,"ratio":1,"raw":"0x00fF","day":"2026-01-02",'
        b'"moment":"2026-01-02T03:04:05.000006+02:00","doc":{"a":[1.10,null]},"wide":"7","price":"12.5","must":1}\n'
    )
    assert checked(line) == [
        {
            "key": "k",
            "flag": True,
            "small": -5,
            "large": 9007199254740993,
            "ratio": 1.0,
            "raw": b"\x00\xff",
            "day": dt.date(2026, 1, 2),
            "moment": dt.datetime(2026, 1, 2, 1, 4, 5, 6, dt.UTC),
            "doc": '{"a":[1.10,null]}',
            "wide": "7",
            "price": "12.5",
            "must": 1,
        }
    ]


GOOD = b'{"key":"a","must":1}'
REFUSED = {
    "unknown field": (b'{"key":"b","must":1,"secverity":1}', "secverity"),
    "an org of their choice": (b'{"key":"b","must":1,"org_id":"00000000-0000-0000-0000-000000000001"}', "org_id"),
    "a producer of their choice": (b'{"key":"b","must":1,"publish_seq":1}', "publish_seq"),
    "text for a number": (b'{"key":"b","must":"1"}', "'must'"),
    "a fraction for a whole number": (b'{"key":"b","must":1.5}', "'must'"),
    "a number for a flag": (b'{"key":"b","must":1,"flag":1}', "'flag'"),
    "too large for 32 bits": (b'{"key":"b","must":2147483648}', "'must'"),
    "too large for 64 bits": (b'{"key":"b","must":1,"large":9223372036854775808}', "'large'"),
    "missing": (b'{"key":"b"}', "'must'"),
    "null where it may not be": (b'{"key":"b","must":null}', "'must'"),
    "a null key": (b'{"key":null,"must":1}', "'key'"),
    "not JSON": (b'{"key":"b","must":1', "not a JSON object"),
    "not an object": (b'["b", 1]', "not a JSON object"),
    "two objects on a line": (b'{"key":"b","must":1}{"key":"c","must":1}', "not a JSON object"),
    "not UTF-8": (b'{"key":"\xff","must":1}', ""),
    "a NUL character": (b'{"key":"b\\u0000","must":1}', "NUL"),
    "a NUL in a document": (b'{"key":"b","must":1,"doc":{"a":"\\u0000"}}', "NUL"),
    "a time without a zone": (b'{"key":"b","must":1,"moment":"2026-01-02T03:04:05"}', "'moment'"),
    "bytes that are no hex": (b'{"key":"b","must":1,"raw":"0xzz"}', "'raw'"),
    "half a byte": (b'{"key":"b","must":1,"raw":"0xf"}', "'raw'"),
    "wider than 256 bits": (b'{"key":"b","must":1,"wide":"%d"}' % 2**256, "'wide'"),
    "less than nothing": (b'{"key":"b","must":1,"wide":-1}', "'wide'"),
    "more digits than declared": (b'{"key":"b","must":1,"price":"1.234"}', "'price'"),
    "not a number": (b'{"key":"b","must":1,"price":"NaN"}', "'price'"),
    "a long line": (b'{"key":"%s","must":1}' % (b"x" * 3_000), "bytes"),
    "the same key with another row": (b'{"key":"a","must":2}', "same key"),
    "a document that is none": (b'{"key":"b","must":1,"doc":{"a":nope}}', ""),
    "too deep": (b'{"key":"b","must":1,"doc":' + b"[" * 900 + b"}", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_line_that_is_not_what_was_declared_is_refused_with_its_number(name: str) -> None:
    bad, said = REFUSED[name]
    line, reason = fault(GOOD + b"\n\n" + bad + b"\n" + GOOD.replace(b'"a"', b'"z"') + b"\n")
    assert line == 3
    assert said in reason


def test_a_backslash_before_u0000_is_only_text() -> None:
    (row,) = checked(b'{"key":"\\\\u0000","must":1}')
    assert row["key"] == "\\u0000"


def test_the_same_row_twice_is_one_row_and_an_empty_batch_has_none() -> None:
    assert len(checked(GOOD + b"\n" + GOOD + b"\n")) == 1
    assert checked(b"") == checked(b"\n\n") == []


def parquet(**columns: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def stream(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def test_columns_are_taken_where_nothing_is_lost() -> None:
    body = parquet(
        key=pa.array(["a", "b"]).dictionary_encode(),
        must=pa.array([1, 2], pa.int64()),
        small=pa.array([1, None], pa.int8()),
        wide=pa.array([Decimal(2), None], pa.decimal128(38, 0)),
        price=pa.array([Decimal("1.20"), None], pa.decimal128(5, 2)),
        moment=pa.array([0, None], pa.timestamp("ms", "Europe/Berlin")),
        doc=pa.array(['{"a":1}', None]),
    )
    first, second = checked(body, PARQUET)
    assert (first["wide"], first["price"], first["doc"]) == ("2", "1.20", '{"a":1}')
    assert first["moment"] == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert [second[name] for name in ("small", "wide", "price", "doc", "flag")] == [None] * 5
    assert checked(stream(pa.table({"key": ["a"], "must": pa.array([1], pa.int32())})), STREAM)[0]["must"] == 1


COLUMNS: dict[str, tuple[dict[str, Any], int | None, str]] = {
    "unknown": ({"key": ["a"], "must": [1], "org_id": ["x"]}, None, "org_id"),
    "missing": ({"key": ["a"]}, None, "'must'"),
    "text for a number": ({"key": ["a"], "must": ["1"]}, None, "'must'"),
    "a null": ({"key": ["a", "b"], "must": [1, None]}, 2, "'must'"),
    "too large": ({"key": ["a"], "must": [2**40]}, None, "'must'"),
    "no zone": ({"key": ["a"], "must": [1], "moment": [dt.datetime(2026, 1, 1)]}, None, "'moment'"),  # noqa: DTZ001
    "no document": ({"key": ["a", "b"], "must": [1, 1], "doc": ["{}", "{"]}, 2, "'doc'"),
    "a NUL": ({"key": ["a", "b\0"], "must": [1, 1]}, 2, "NUL"),
    "another row of one key": ({"key": ["a", "b", "a"], "must": [1, 1, 2]}, 3, "same key"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_are_not_what_was_declared_are_refused(name: str) -> None:
    columns, row, said = COLUMNS[name]
    line, reason = fault(parquet(**columns), PARQUET)
    assert (line, said in reason) == (row, True), reason


def test_bytes_that_are_not_what_their_content_type_says_are_refused() -> None:
    assert "cannot be read" in fault(GOOD, PARQUET)[1]
    assert "cannot be read" in fault(parquet(key=["a"])[:-9], PARQUET)[1]
    assert "cannot be read" in fault(b"ARROW1", STREAM)[1]
    assert "content type" in fault(GOOD, "application/pickle")[1]


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
            "must": st.integers(-(2**31), 2**31 - 1),
        },
        optional={
            "large": st.none() | st.integers(-(2**63), 2**63 - 1),
            "flag": st.none() | st.booleans(),
            "ratio": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "wide": st.none() | st.integers(0, 2**256 - 1).map(str),
        },
    ),
    unique_by=lambda row: row["key"],
    max_size=20,
)


@given(ROWS)
@settings(max_examples=50)
def test_what_can_be_written_is_read_back_row_for_row(rows: list[dict[str, Any]]) -> None:
    body = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    found = checked(body)
    assert [{name: row[name] for name in given} for row, given in zip(found, rows, strict=True)] == rows


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes_are_rows_or_a_fault(body: bytes) -> None:
    for kind in (JSONL, PARQUET, STREAM):
        with suppress(BatchFault):
            assert check_batch(body, kind, EVERY, LIMITS).column_names == list(EVERY.names)
