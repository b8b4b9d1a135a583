"""Rows on the wire: JSON that any program reads, or Arrow IPC that keeps every type."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from trace_platform.query_contracts import QueryAnswer

if TYPE_CHECKING:
    import pyarrow as pa


def as_json(answer: QueryAnswer, table: pa.Table | None) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(answer, rows=rows_of(table)))


def as_arrow(answer: QueryAnswer, table: pa.Table) -> bytes:
    """A stream with one schema; the answer without its rows stands in the schema's metadata, under `trace`."""
    import pyarrow as pa

    told = table.replace_schema_metadata({b"trace": msgspec.json.encode(answer)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, told.schema) as writer:
        writer.write_table(told)
    return bytes(sink.getvalue().to_pybytes())


def rows_of(table: pa.Table | None) -> list[list[Any]]:
    if table is None:
        return []
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(table.num_rows)]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    for kind, plain in _PLAIN:
        if isinstance(value, kind):
            return plain(value)
    return str(value)


def _pairs(value: dict[Any, Any]) -> dict[str, Any]:
    return {str(name): _plain(one) for name, one in value.items()}


_PLAIN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (bytes, lambda value: "0x" + value.hex()),
    (Decimal, lambda value: format(value, "f")),
    ((datetime, date, time), lambda value: value.isoformat()),
    (timedelta, lambda value: value.total_seconds()),
    (dict, _pairs),
    ((list, tuple), lambda value: [_plain(one) for one in value]),
)
