"""Encodes rows for HTTP: as JSON for any program, or as Arrow IPC, which keeps every type.

JSON is made of Python objects, so whoever encodes a large answer has the interpreter's lock, for which the thread waits
that answers all others. So it is encoded in parts of some tenths of a millisecond, between which the lock is free, and
by one thread, in which large answers take turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracelake.wire.internal.queries import QueryAnswer
from tracelake.wire.json_values import plain

if TYPE_CHECKING:
    import pyarrow as pa

PART_ROWS: Final = 500
PART_BYTES: Final = 256 * 1024
"""At most so much of a table becomes Python objects at once."""
PAUSE_SECONDS: Final = 0.0001
"""Between two parts: a thread that waits for the lock is woken in less."""
NO_ROWS: Final = b'"rows":[]'

Encoding = Generator[None, None, bytes]


class Encoder:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "encode")

    async def json(self, answer: QueryAnswer, table: pa.Table | None) -> bytes:
        encoding = as_json(answer, table)
        if table is None or (table.num_rows <= PART_ROWS and table.nbytes <= PART_BYTES):
            return _finished(encoding)
        done: Future[bytes] = Future()
        self._thread.submit(self._encode_part, encoding, done)
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _encode_part(self, encoding: Encoding, done: Future[bytes]) -> None:
        """The next part comes after one of each other answer."""
        if done.cancelled():  # its caller has left
            return
        try:
            next(encoding)
        except StopIteration as end:
            done.set_result(end.value)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            done.set_exception(error)
        else:
            time.sleep(PAUSE_SECONDS)
            self._thread.submit(self._encode_part, encoding, done)


def as_json(answer: QueryAnswer, table: pa.Table | None) -> Encoding:
    """Yields after each part, and returns the whole."""
    before, rows, after = msgspec.json.encode(msgspec.structs.replace(answer, rows=[])).partition(NO_ROWS)
    parts = []
    for part in _parts(table):
        parts.append(msgspec.json.encode(rows_of(part))[1:-1])
        yield
    return b"".join((before, rows[:-1], b",".join(parts), rows[-1:], after))


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
    if table is not None:
        rows = _part_rows(table)
        for start in range(0, table.num_rows, rows):
            yield table.slice(start, rows)


def _part_rows(table: pa.Table) -> int:
    row_bytes: int = table.nbytes // max(1, table.num_rows)
    return max(1, min(PART_ROWS, PART_BYTES // max(1, row_bytes)))


def _finished(encoding: Encoding) -> bytes:
    while True:
        try:
            next(encoding)
        except StopIteration as end:
            whole: bytes = end.value
            return whole
