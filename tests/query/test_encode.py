"""Rows as JSON: those that are encoded in parts are the same as in one, and large answers take turns."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest

from tests.support.waiting import SECONDS, until
from tracelake.query import encode
from tracelake.query.encode import Encoder, rows_of
from tracelake.wire.internal.queries import QueryAnswer

pytestmark = pytest.mark.anyio
ANSWER = QueryAnswer(uuid4(), [], [], 0, truncated=False, bytes=0, milliseconds=0, datasets=[])
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "bigint": (pa.int64(), [1, None, -(2**63)], [1, None, -(2**63)]),
    "boolean": (pa.bool_(), [True, None, False], [True, None, False]),
    "string": (pa.string(), ['a "b"\n', None, "\u00e4\U0001f600"], ['a "b"\n', None, "\u00e4\U0001f600"]),
    "double": (pa.float64(), [1.5, float("nan"), float("-inf")], [1.5, "nan", "-inf"]),
    "binary": (pa.binary(), [b"\x00\xff", None, b""], ["0x00ff", None, "0x"]),
    "decimal": (pa.decimal128(38, 2), [Decimal("1.50"), None, Decimal(0)], ["1.50", None, "0.00"]),
    "date": (pa.date32(), [date(2024, 2, 29), None, date(1, 1, 1)], ["2024-02-29", None, "0001-01-01"]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [datetime(2024, 1, 1, tzinfo=UTC), None, None],
        ["2024-01-01T00:00:00+00:00", None, None],
    ),
    "array": (pa.list_(pa.float64()), [[1.0, float("nan")], None, []], [[1.0, "nan"], None, []]),
}


async def encoded(table: pa.Table | None) -> Any:
    encoder = Encoder()
    try:
        return msgspec.json.decode(await encoder.json(ANSWER, table))["rows"]
    finally:
        encoder.close()


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
async def test_rows_in_parts_are_those_of_one_encoding(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With parts that end within, with and after the rows."""
    monkeypatch.setattr(encode, "PART_ROWS", rows)
    table = pa.table({name: pa.array(values, kind) for name, (kind, values, _) in COLUMNS.items()})
    wanted = [values for _, _, values in COLUMNS.values()]
    assert await encoded(table) == [list(row) for row in zip(*wanted, strict=True)]


async def test_an_answer_without_rows_has_an_empty_list() -> None:
    assert await encoded(None) == []
    assert await encoded(pa.table({"n": pa.array([], pa.int64())})) == []


async def test_values_of_any_size_are_encoded_one_at_a_time_if_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "PART_BYTES", 10)
    assert await encoded(pa.table({"t": ["a" * 30, "b" * 30]})) == [["a" * 30], ["b" * 30]]
    assert await encoded(pa.table({"t": ["a" * 30]})) == [["a" * 30]]


class Parts:
    """Notes of which answer each part is, and holds the first one until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.go = threading.Event()
        monkeypatch.setattr(encode, "PART_ROWS", 1)
        monkeypatch.setattr(encode, "rows_of", self._rows_of)

    def _rows_of(self, part: pa.Table) -> list[list[Any]]:
        self.seen.append(part.column_names[0])
        assert self.go.wait(SECONDS)
        return rows_of(part)


async def test_large_answers_are_encoded_a_part_of_each_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, encoder = Parts(monkeypatch), Encoder()
    first = asyncio.create_task(encoder.json(ANSWER, pa.table({"first": [1, 2, 3]})))
    await until(lambda: parts.seen, "the first one is begun")
    second = asyncio.create_task(encoder.json(ANSWER, pa.table({"second": [1, 2]})))
    await asyncio.sleep(0)
    parts.go.set()
    assert [msgspec.json.decode(await body)["rows"] for body in (first, second)] == [[[1], [2], [3]], [[1], [2]]]
    assert parts.seen == ["first", "second", "first", "second", "first"]
    encoder.close()


async def test_of_an_answer_whose_caller_has_left_nothing_more_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, encoder = Parts(monkeypatch), Encoder()
    left = asyncio.create_task(encoder.json(ANSWER, pa.table({"left": [1, 2, 3]})))
    await until(lambda: parts.seen, "it is begun")
    left.cancel()
    await asyncio.wait({left})
    parts.go.set()
    await encoder.json(ANSWER, pa.table({"next": [1, 2]}))
    assert parts.seen == ["left", "next", "next"]
    encoder.close()


async def test_an_error_in_a_part_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: pa.Table) -> list[list[Any]]:
        raise ValueError("a value that nobody expected")

    monkeypatch.setattr(encode, "PART_ROWS", 1)
    monkeypatch.setattr(encode, "rows_of", fails)
    with pytest.raises(ValueError, match="nobody expected"):
        await encoded(pa.table({"n": [1, 2]}))
