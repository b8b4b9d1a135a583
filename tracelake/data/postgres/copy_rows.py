"""Copies Arrow rows into a table through a psycopg connection, inside its transaction, by COPY.

CSV, written by Arrow column by column: for large batches within a tenth of ADBC's binary format (most time is Postgres'
own), for one block as quick, and it needs no second connection, so the rows commit with the caller's other writes.
Postgres converts each column to the table's type: text to jsonb, digits to a wide numeric.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv

from tracelake.errors import BadInput

HEX: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint16)
"""The two hex digits of every byte, as one number: one look-up per byte."""
OPTIONS: Final = csv.WriteOptions(include_header=False, batch_size=8192)
LAST_QUOTE: Final = re.compile(r'"[^"]*"$')
"""Where Postgres quotes the value that it refused."""
PIECE: Final = 1 << 20
"""Bytes passed to the driver at once."""


def copy_rows(connection: psycopg.Connection[Any], into: sql.Identifier, rows: pa.Table) -> int:
    """Append the rows by column name; a value that the table refuses is an error of one sentence."""
    if not rows.num_rows:
        return 0
    names = sql.SQL(", ").join(map(sql.Identifier, rows.column_names))
    command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(into, names)
    text = memoryview(as_csv(rows))
    try:
        with connection.cursor() as cursor, cursor.copy(command) as copy:
            for start in range(0, len(text), PIECE):
                copy.write(text[start : start + PIECE])
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise refused(error) from None
    return int(rows.num_rows)


def as_csv(rows: pa.Table) -> pa.Buffer:
    """Quote every text, to distinguish an empty one from NULL, which is nothing between two commas."""
    whole = rows.combine_chunks()  # Arrow's writer writes garbage for a chunk without rows
    columns = [_printable(column) for column in whole.columns]
    out = pa.BufferOutputStream()
    csv.write_csv(pa.table(columns, names=rows.column_names), out, OPTIONS)
    return out.getvalue()


def refused(error: psycopg.Error) -> BadInput:
    """Return Postgres' message and the column; never the row, which is user data."""
    message = error.diag.message_primary or type(error).__name__
    column = error.diag.column_name or next(iter(re.findall(r"column (\w+)", error.diag.context or "")), None)
    return BadInput(
        f"Postgres refused a row: {LAST_QUOTE.sub('...', message)}",
        where=column or error.diag.constraint_name,
        hint="nothing of the batch was written",
    )


def _printable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.chunked_array([_hex(chunk) for chunk in column.chunks], pa.large_string())
    if pa.types.is_decimal(kind):
        return column.cast(pa.string())
    return column


def _hex(chunk: pa.Array) -> pa.Array:
    values = chunk.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64, len(values) + 1, offset=8 * values.offset)  # it may be a slice
    source = np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]] if data is not None else np.empty(0, np.uint8)
    digits = pa.LargeStringArray.from_buffers(
        len(values), pa.py_buffer((ends - ends[0]) * 2), pa.py_buffer(HEX[source]), None
    )
    marked = pc.binary_join_element_wise(_large("\\x"), digits, _large(""))
    return pc.if_else(values.is_valid(), marked, _large(None)) if values.null_count else marked


def _large(text: str | None) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())
