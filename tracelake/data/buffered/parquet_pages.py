"""What the pages of a Parquet file unpack to, read from their own headers and before anything is unpacked.

The footer only repeats what a producer claims. A page's header is what the reader goes by: it unpacks exactly so many
bytes or fails. So the headers of all pages are read here (Thrift's compact protocol), and nothing else of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.parquet as pq

from tracelake.data.buffered.batch_fault import Fault

FOOTER_BYTES: Final = 1024 * 1024
"""Its lists become objects of a hundred times their size; a batch of 16 MiB has one of some kilobytes."""
MOST_PAGES: Final = 100_000
"""Pages may be named by many columns at once, and be empty: to look at them costs time all the same."""
DICTIONARY_PAGE: Final = 2
ENCODINGS: Final = frozenset({0, 2, 3, 5, 8, 9})
"""Plain, dictionaries, run lengths, binary deltas, split streams. The others build texts out of other texts, so that no
header says how large they become; hardly anybody writes them."""
DEEPEST: Final = 8
MALFORMED: Final = "the batch cannot be read as Parquet: the header of a page is malformed"


@dataclass(frozen=True)
class Page:
    unpacked: int
    is_dictionary: bool


def refuse_large_footer(body: bytes) -> None:
    if not body.endswith(b"PAR1"):
        raise Fault("the batch cannot be read as Parquet: it does not end as such a file does")
    size = int.from_bytes(body[-8:-4], "little")
    if size > FOOTER_BYTES:
        raise Fault(f"the footer of the Parquet file has {size} bytes; at most {FOOTER_BYTES} are taken")


def pages(body: bytes, metadata: pq.FileMetaData) -> Iterator[tuple[int, Page]]:
    """Every page with the number of its column, in the order of the file's footer."""
    count = 0
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            for page in _of_chunk(body, metadata.row_group(group).column(column)):
                count += 1
                if count > MOST_PAGES:
                    raise Fault(f"the Parquet file has more than {MOST_PAGES} pages")
                yield column, page


def _of_chunk(body: bytes, chunk: pq.ColumnChunkMetaData) -> Iterator[Page]:
    place = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < place:
        place = chunk.dictionary_page_offset
    end = place + chunk.total_compressed_size
    if place < 0 or chunk.total_compressed_size < 0 or end > len(body):
        raise Fault("the batch cannot be read as Parquet: a column lies outside of the file")
    while place < end:
        header = _Compact(body, place)
        page, packed = _page(header.struct())
        yield page
        place = header.place + packed


def _page(told: dict[int, Any]) -> tuple[Page, int]:
    """What it unpacks to, and how many bytes of the file it has."""
    kind, unpacked, packed = (told.get(field) for field in (1, 2, 3))
    if not (isinstance(kind, int) and isinstance(unpacked, int) and isinstance(packed, int)):
        raise Fault(MALFORMED)
    if unpacked < 0 or packed < 0:
        raise Fault(MALFORMED)
    # The header of its kind: of a data page, of a dictionary, of a data page of the second version.
    header, encoding = {0: (5, 2), DICTIONARY_PAGE: (7, 2), 3: (8, 4)}.get(kind, (0, 0))
    within = told.get(header)
    if isinstance(within, dict):
        if within.get(encoding) not in ENCODINGS:
            raise Fault("the Parquet file has an encoding that is not taken: write it plain, or with dictionaries")
        values = within.get(1)
        if kind == DICTIONARY_PAGE and not (isinstance(values, int) and 0 <= values <= unpacked):
            raise Fault("the batch cannot be read as Parquet: a dictionary says it has more values than bytes")
    return Page(unpacked, kind == DICTIONARY_PAGE), packed


class _Compact:
    """Reads one struct of Thrift's compact protocol; what no number is, is passed over."""

    def __init__(self, body: bytes, place: int) -> None:
        self._body = body
        self.place = place

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > DEEPEST:
            raise Fault(MALFORMED)
        found: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) != 0:
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            found[field] = self._value(head & 0x0F, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:  # a flag is all in its head
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
            case _:  # lists, sets and maps: no header of a page has one
                raise Fault(MALFORMED)

    def _skip(self, size: int) -> None:
        self.place += size
        if self.place > len(self._body):
            raise Fault(MALFORMED)

    def _byte(self) -> int:
        if self.place >= len(self._body):
            raise Fault(MALFORMED)
        self.place += 1
        return self._body[self.place - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the flag of all but the last
                return value
        raise Fault(MALFORMED)

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
