"""Encodes rows for HTTP: as JSON for any program, or as Arrow IPC, which keeps every type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracelake.wire.internal.queries import QueryAnswer
from tracelake.wire.json_values import plain

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE: Final = 2000
"""Rows that are Python objects at the same time. The garbage collector looks at each, and stops all queries."""


def as_json(answer: QueryAnswer, table: pa.Table | None) -> bytes:
    parts = [msgspec.json.encode(rows_of(part))[1:-1] for part in _parts(table)]
    rows: Any = msgspec.Raw(b"[" + b",".join(parts) + b"]")
    return msgspec.json.encode(msgspec.structs.replace(answer, rows=rows))


def as_arrow(answer: QueryAnswer, table: pa.Table) -> bytes:
    """A stream with one schema; its metadata has the answer without rows, under `trace`."""
    import pyarrow as pa

    table_with_answer = table.replace_schema_metadata({b"trace": msgspec.json.encode(answer)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table_with_answer.schema) as writer:
        writer.write_table(table_with_answer)
    return bytes(sink.getvalue().to_pybytes())


def rows_of(table: pa.Table | None) -> list[list[Any]]:
    if table is None:
        return []
    columns = [_values(column) for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(table.num_rows)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    import pyarrow as pa

    values: list[Any] = column.to_pylist()
    kind = column.type
    same = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind)
    return values if same else [plain(value) for value in values]


def _parts(table: pa.Table | None) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows if table is not None else 0, AT_ONCE):
        yield table.slice(start, AT_ONCE)  # type: ignore[union-attr]
