"""A summary of the addresses in a Parquet file: a Bloom filter of the values of its column `address`.

Of each value four bits are set: the first four pairs of bytes of its SHA-256, modulo the number of bits. `may_hold` in
Postgres reads them. The number of bits is a power of two, so a small filter that is repeated is the same filter in a
larger size, and those of several files are joined.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from tracelake.wire.task.markers import ADDRESS

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BYTES: Final = 2048
"""With 1,000 addresses, of 500 others one seems to be there; with 5,000, every fourth."""
MAX_ADDRESSES: Final = 10_000
"""Of a file; with more, there is no summary: most others would seem to be there."""
BYTES_OF_EACH: Final = 2
PLACES: Final = range(0, 8, 2)


class Addresses:
    """Collects those of a file, batch by batch."""

    def __init__(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        places = [place for place, field in enumerate(schema) if field.name.lower() == ADDRESS]
        self.place = places[0] if len(places) == 1 and pa.types.is_binary(schema.field(places[0]).type) else None
        self.seen: set[bytes] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        if self.place is not None:
            self.seen.update(value for value in batch.column(self.place).unique().to_pylist() if value is not None)
        if len(self.seen) > MAX_ADDRESSES:
            self.place = None

    @property
    def summary(self) -> bytes | None:
        """None: without a column of addresses in bytes, or with very many."""
        return None if self.place is None else summary_of(self.seen)


def summary_of(values: Collection[bytes]) -> bytes:
    size = 1
    while size < min(BYTES_OF_EACH * len(values), MAX_BYTES):
        size *= 2
    bits = bytearray(size)
    for value in values:
        for bit in _bits(value, 8 * size):
            bits[bit // 8] |= 1 << bit % 8  # as Postgres counts them
    return bytes(bits)


def joined(summaries: Sequence[bytes | None]) -> bytes | None:
    """Of several files; None if one is not known."""
    known = [summary for summary in summaries if summary is not None]
    if not known or len(known) < len(summaries):
        return None
    size = max(map(len, known))
    whole = (int.from_bytes(summary * (size // len(summary))) for summary in known)
    bits = 0
    for summary in whole:
        bits |= summary
    return bits.to_bytes(size)


def _bits(value: bytes, count: int) -> list[int]:
    digest = hashlib.sha256(value).digest()
    return [int.from_bytes(digest[place : place + 2]) % count for place in PLACES]
