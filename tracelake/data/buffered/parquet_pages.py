"""Computes the unpacked size of the pages of a Parquet file from their headers, before anything is unpacked.

The footer only repeats what a producer claims. The reader follows the header of a page: it unpacks exactly that many
bytes or fails. So the headers of all pages are read here (Thrift's compact protocol), and nothing else of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.parquet as pq

from tracelake.data.buffered.batch_fault import BatchFault

FOOTER_BYTES: Final = 1024 * 1024
"""The lists in a footer become objects of a hundred times their size; a batch of 16 MiB has a footer of some
kilobytes."""
MOST_PAGES: Final = 100_000
"""Many columns may refer to the same pages, and pages may be empty: reading their headers takes time all the same."""
DICTIONARY_PAGE: Final = 2
ENCODINGS: Final = frozenset({0, 2, 3, 5, 8, 9})
"""Plain, dictionaries, run lengths, binary deltas, split streams. The others build texts from other texts, so that no
header has their size; they are rarely used."""
DEEPEST: Final = 8
MALFORMED: Final = "the batch cannot be read as Parquet: the header of a page is malformed"


@dataclass(frozen=True)
class ParquetPage:
    unpacked: int
    is_dictionary: bool


def refuse_large_footer(body: bytes) -> None:
    if not body.endswith(b"PAR1"):
        raise BatchFault("the batch cannot be read as Parquet: it does not end like a Parquet file")
    size = int.from_bytes(body[-8:-4], "little")
    if size > FOOTER_BYTES:
        raise BatchFault(f"the footer of the Parquet file has {size} bytes; at most {FOOTER_BYTES} are allowed")


def pages(body: bytes, metadata: pq.FileMetaData) -> Iterator[tuple[int, ParquetPage]]:
    """Yield every page with the number of its column, in the order of the footer."""
    count = 0
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            for page in _of_chunk(body, metadata.row_group(group).column(column)):
                count += 1
                if count > MOST_PAGES:
                    raise BatchFault(f"the Parquet file has more than {MOST_PAGES} pages")
                yield column, page


def _of_chunk(body: bytes, chunk: pq.ColumnChunkMetaData) -> Iterator[ParquetPage]:
    place = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < place:
        place = chunk.dictionary_page_offset
    end = place + chunk.total_compressed_size
    if place < 0 or chunk.total_compressed_size < 0 or end > len(body):
        raise BatchFault("the batch cannot be read as Parquet: a column is outside the file")
    while place < end:
        header = _Compact(body, place)
        page, packed = _page(header.struct())
        yield page
        place = header.place + packed


def _page(header: dict[int, Any]) -> tuple[ParquetPage, int]:
    """Return the unpacked size of a page, and its size in the file."""
    kind, unpacked, packed = (header.get(field) for field in (1, 2, 3))
    if not (isinstance(kind, int) and isinstance(unpacked, int) and isinstance(packed, int)):
        raise BatchFault(MALFORMED)
    if unpacked < 0 or packed < 0:
        raise BatchFault(MALFORMED)
    # The header of its kind: data page, dictionary page, data page of the second version.
    inner, encoding = {0: (5, 2), DICTIONARY_PAGE: (7, 2), 3: (8, 4)}.get(kind, (0, 0))
    within = header.get(inner)
    if isinstance(within, dict):
        if within.get(encoding) not in ENCODINGS:
            raise BatchFault("the Parquet file has an unsupported encoding: write it plain, or with dictionaries")
        values = within.get(1)
        if kind == DICTIONARY_PAGE and not (isinstance(values, int) and 0 <= values <= unpacked):
            raise BatchFault("the batch cannot be read as Parquet: a dictionary claims more values than bytes")
    return ParquetPage(unpacked, kind == DICTIONARY_PAGE), packed


class _Compact:
    """Reads a struct of Thrift's compact protocol; fields that are not numbers are skipped."""

    def __init__(self, body: bytes, place: int) -> None:
        self._body = body
        self.place = place

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > DEEPEST:
            raise BatchFault(MALFORMED)
        fields: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) != 0:
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            fields[field] = self._value(head & 0x0F, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:  # a flag is in the field header
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._zigzag()
            case 7:
                return self._skip(8)
            case 8:
                return self._skip(self._varint())
            case 12:
                return self.struct(depth + 1)
            case _:  # lists, sets and maps: page headers have none
                raise BatchFault(MALFORMED)

    def _skip(self, size: int) -> None:
        self.place += size
        if self.place > len(self._body):
            raise BatchFault(MALFORMED)

    def _byte(self) -> int:
        if self.place >= len(self._body):
            raise BatchFault(MALFORMED)
        self.place += 1
        return self._body[self.place - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the flag of all but the last
                return value
        raise BatchFault(MALFORMED)

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
