"""Encodes rows for HTTP: as JSON for any program, or as Arrow IPC, which keeps every type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tracelake.wire.internal.queries import QueryAnswer
from tracelake.wire.json_values import plain

if TYPE_CHECKING:
    import pyarrow as pa


def as_json(answer: QueryAnswer, table: pa.Table | None) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(answer, rows=rows_of(table)))


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
    columns = [[plain(value) for value in column.to_pylist()] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(table.num_rows)]
