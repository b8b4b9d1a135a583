"""A Parquet or Arrow batch unpacked, and never to more than is allowed, whatever it says of itself.

16 MiB may unpack to terabytes: by compression, by dictionaries whose long values are repeated, by rows that hold
nothing. So first what the reader would unpack is added up without unpacking it (`parquet_pages`, `arrow_messages`);
then rows are read some at a time, and what they come to when every value stands by itself is counted as we go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracelake.data.buffered.arrow_messages import stream_of, unpacked_bytes
from tracelake.data.buffered.batch_fault import Fault
from tracelake.data.buffered.parquet_pages import pages, refuse_large_footer

ROW_BYTES: Final = 64
"""What a row costs at least, however little it holds; the check makes Python objects of some."""
MOST_ROWS_AT_ONCE: Final = 65_536


@dataclass
class UnpackBudget:
    """What may still be unpacked."""

    limit: int
    used: int = 0

    def take(self, size: int) -> None:
        self.used += size
        if self.used > self.limit:
            raise Fault(
                f"the batch unpacks to more than {self.limit} bytes; a producer cuts its rows into several batches"
            )


def unpack_parquet(body: bytes, limit: int, check: Callable[[pa.Schema], object]) -> pa.Table:
    """`check` refuses a schema before any row is read: what is left are plain columns."""
    refuse_large_footer(body)
    file = pq.ParquetFile(pa.BufferReader(body))
    check(file.schema_arrow)
    largest = _largest_dictionaries(body, file.metadata, limit)
    width = sum(largest.values()) + sum(map(_width, file.schema_arrow.types))
    if width > limit:
        raise Fault(f"a row of the batch may unpack to more than {limit} bytes")
    some = max(1, min(MOST_ROWS_AT_ONCE, limit // max(1, width)))
    return _gathered(file.iter_batches(batch_size=some), file.schema_arrow, limit)


def unpack_arrow(body: bytes, kind: str, limit: int, check: Callable[[pa.Schema], object]) -> pa.Table:
    stream = pa.py_buffer(body if kind.endswith("stream") else stream_of(body))
    reader = pa.ipc.open_stream(pa.BufferReader(stream))
    check(reader.schema)
    room = UnpackBudget(limit)
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(stream))
    for message in messages:
        room.take(unpacked_bytes(message))
    return _gathered(_sound(reader), reader.schema, limit)


def _largest_dictionaries(body: bytes, metadata: pq.FileMetaData, limit: int) -> dict[int, int]:
    """Of each column: no value of it that is repeated is larger. And all pages together are not more than allowed."""
    room = UnpackBudget(limit)
    largest: dict[int, int] = {}
    for column, page in pages(body, metadata):
        room.take(page.unpacked)
        if page.is_dictionary:
            largest[column] = max(largest.get(column, 0), page.unpacked)
    return largest


def _sound(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Arrow is laid into memory as it comes: offsets that lead elsewhere are found here, or never."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _gathered(batches: Iterable[pa.RecordBatch], schema: pa.Schema, limit: int) -> pa.Table:
    room = UnpackBudget(limit)
    kept = []
    for batch in batches:
        room.take(batch.num_rows * (ROW_BYTES + 8 * batch.num_columns))
        for array in batch.columns:
            room.take(_expanded(array))
        kept.append(batch)
    return pa.Table.from_batches(kept, schema)


def _expanded(array: Any) -> int:
    """Its size when each value stands by itself."""
    if pa.types.is_dictionary(array.type):
        values = array.dictionary
        if not _has_lengths(values.type):
            return len(array) * _width(values.type)
        return len(array) * 8 + _total(pc.take(_lengths(values), array.indices))
    if _is_view(array.type):
        return len(array) * 8 + _total(_lengths(array))
    return int(array.nbytes)


def _lengths(array: Any) -> pa.Array:
    if not _is_view(array.type):
        return pc.binary_length(array)
    # Each view is of 16 bytes, and begins with the length of what it shows, which others may show too.
    views = memoryview(array.buffers()[1]).cast("i")
    return pa.array(views[4 * array.offset : 4 * (array.offset + len(array)) : 4].tolist(), pa.int64())


def _total(lengths: pa.Array) -> int:
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


def _has_lengths(given: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_string(given) or t.is_large_string(given) or t.is_binary(given) or t.is_large_binary(given)
    ) or _is_view(given)


def _is_view(given: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(given) or pa.types.is_binary_view(given))


def _width(given: pa.DataType) -> int:
    """Of a value of a fixed size, also where it is empty; others have what they have."""
    try:
        return max(1, int(given.bit_width) // 8)
    except ValueError:
        return 1
