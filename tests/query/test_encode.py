"""Rows as JSON: those that are encoded in parts are the same as in one."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest

from tracelake.query import encode
from tracelake.query.encode import as_json
from tracelake.wire.internal.queries import QueryAnswer

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


def encoded(table: pa.Table | None) -> Any:
    answer = QueryAnswer(uuid4(), [], [], 0, truncated=False, bytes=0, milliseconds=0, datasets=[])
    return msgspec.json.decode(as_json(answer, table))["rows"]


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_rows_in_parts_are_those_of_one_encoding(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With parts that end within, with and after the rows."""
    monkeypatch.setattr(encode, "AT_ONCE", rows)
    table = pa.table({name: pa.array(values, kind) for name, (kind, values, _) in COLUMNS.items()})
    assert encoded(table) == [list(row) for row in zip(*(wanted for _, _, wanted in COLUMNS.values()), strict=True)]


def test_an_answer_without_rows_has_an_empty_list() -> None:
    assert encoded(None) == []
    assert encoded(pa.table({"n": pa.array([], pa.int64())})) == []
