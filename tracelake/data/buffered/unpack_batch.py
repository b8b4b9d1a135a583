"""Unpacks a Parquet or Arrow batch, never to more than is allowed, whatever it claims.

16 MiB may unpack to terabytes: by compression, by dictionaries whose long values are repeated, by rows without content.
So first the unpacked size is added up without unpacking (`parquet_pages`, `arrow_messages`); then rows are read in
small batches, and their size with every value written out is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracelake.data.buffered.arrow_messages import stream_of, unpacked_bytes
from tracelake.data.buffered.batch_fault import BatchFault
from tracelake.data.buffered.parquet_pages import pages, refuse_large_footer

ROW_BYTES: Final = 64
"""The minimal size of a row, however little it holds; the check makes Python objects of some types."""
MOST_ROWS_AT_ONCE: Final = 65_536


@dataclass
class UnpackBudget:
    """How many bytes may still be unpacked."""

    limit: int
    used: int = 0

    def take(self, size: int) -> None:
        self.used += size
        if self.used > self.limit:
            raise BatchFault(f"the batch unpacks to more than {self.limit} bytes; publish its rows as several batches")


def unpack_parquet(body: bytes, limit: int, check: Callable[[pa.Schema], object]) -> pa.Table:
    """Yield the rows. `check` refuses a schema before any row is read: then only plain columns are left."""
    refuse_large_footer(body)
    file = pq.ParquetFile(pa.BufferReader(body))
    check(file.schema_arrow)
    largest = _largest_dictionaries(body, file.metadata, limit)
    width = sum(largest.values()) + sum(map(_width, file.schema_arrow.types))
    if width > limit:
        raise BatchFault(f"a row of the batch may unpack to more than {limit} bytes")
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
    """Return the largest page of each column, which no repeated value exceeds; raises if all pages are too large."""
    room = UnpackBudget(limit)
    largest: dict[int, int] = {}
    for column, page in pages(body, metadata):
        room.take(page.unpacked)
        if page.is_dictionary:
            largest[column] = max(largest.get(column, 0), page.unpacked)
    return largest


def _sound(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Validate: Arrow is mapped into memory as it is, and offsets that point elsewhere must be found here."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _gathered(batches: Iterable[pa.RecordBatch], schema: pa.Schema, limit: int) -> pa.Table:
    room = UnpackBudget(limit)
    sound = []
    for batch in batches:
        room.take(batch.num_rows * (ROW_BYTES + 8 * batch.num_columns))
        for array in batch.columns:
            room.take(_expanded(array))
        sound.append(batch)
    return pa.Table.from_batches(sound, schema)


def _expanded(array: Any) -> int:
    """Return its size with each value written out."""
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
    # Each view has 16 bytes and begins with the length of its value, which other views may share.
    views = memoryview(array.buffers()[1]).cast("i")
    return pa.array(views[4 * array.offset : 4 * (array.offset + len(array)) : 4].tolist(), pa.int64())


def _total(lengths: pa.Array) -> int:
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


def _has_lengths(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind)
    ) or _is_view(kind)


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _width(kind: pa.DataType) -> int:
    """Return the size of a fixed-size value, which empty ones have too; 0 for other types."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 1
