"""Computes the unpacked size of the messages of an Arrow stream from their metadata, before anything is unpacked.

A compressed buffer begins with its unpacked size, and the reader allocates exactly that, or fails. The message (a
flatbuffer) has the positions of the buffers; nothing else of it is read here.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from tracelake.data.buffered.batch_fault import BatchFault

MAGIC: Final = b"ARROW1"
STORED: Final = -1
"""Instead of a size: this buffer is not compressed."""
HEADER_TYPE, HEADER = 1, 2
RECORD_BATCH, DICTIONARY_BATCH = 3, 2
MALFORMED: Final = "the batch cannot be read as Arrow: a message is malformed"


def stream_of(body: bytes) -> bytes:
    """Return the stream within a file, without the footer, which may name one message many times."""
    footer = int.from_bytes(body[-10:-6], "little")
    end = len(body) - 10 - footer
    if not (body.startswith(MAGIC) and body.endswith(MAGIC) and end >= 8):  # noqa: PLR2004 - magic, padded
        raise BatchFault("the batch cannot be read as an Arrow file: it does not begin and end as one")
    return body[8:end]


def unpacked_bytes(message: pa.ipc.Message) -> int:
    """Return the size of all its buffers; 0 if it is neither a record batch nor a dictionary."""
    try:
        return _unpacked(message.metadata.to_pybytes(), message.body)
    except (struct.error, IndexError):
        raise BatchFault(MALFORMED) from None


def _unpacked(metadata: bytes, body: pa.Buffer | None) -> int:
    message = _Table(metadata, _offset(metadata, 0))
    kind = message.number(HEADER_TYPE, "<B")
    batch = message.table(HEADER)
    if kind == DICTIONARY_BATCH and batch is not None:
        batch = batch.table(1)
    if kind not in {RECORD_BATCH, DICTIONARY_BATCH} or batch is None:
        return 0
    buffers = batch.pairs(2)
    if batch.table(3) is None or body is None:
        return sum(max(0, length) for _, length in buffers)
    content = memoryview(body)
    return sum(_size(content, offset, length) for offset, length in buffers if length > 0)


def _size(content: memoryview, offset: int, length: int) -> int:
    if offset < 0:
        raise BatchFault(MALFORMED)
    (size,) = struct.unpack_from("<q", content, offset)
    if size < STORED:
        raise BatchFault(MALFORMED)
    return length if size == STORED else int(size)


def _offset(data: bytes, place: int) -> int:
    if place < 0:
        raise BatchFault(MALFORMED)
    (relative,) = struct.unpack_from("<I", data, place)
    return place + int(relative)


class _Table:
    """A table of a flatbuffer: its fields by number."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self._place = place
        (back,) = struct.unpack_from("<i", data, place)
        self._fields = place - back
        if self._fields < 0:
            raise BatchFault(MALFORMED)
        (self._size,) = struct.unpack_from("<H", data, self._fields)

    def number(self, field: int, form: str) -> int:
        place = self._field(field)
        return 0 if place is None else int(struct.unpack_from(form, self._data, place)[0])

    def table(self, field: int) -> _Table | None:
        place = self._field(field)
        return None if place is None else _Table(self._data, _offset(self._data, place))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Yield the position and length of each buffer in a list."""
        place = self._field(field)
        if place is None:
            return []
        begin = _offset(self._data, place)
        (count,) = struct.unpack_from("<I", self._data, begin)
        if count * 16 > len(self._data):
            raise BatchFault(MALFORMED)
        return list(struct.iter_unpack("<qq", self._data[begin + 4 : begin + 4 + count * 16]))

    def _field(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return None
        (relative,) = struct.unpack_from("<H", self._data, self._fields + entry)
        return self._place + int(relative) if relative else None
