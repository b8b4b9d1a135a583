"""Ranges of whole numbers (block numbers mostly): inclusive at every edge, half-open inside (S6).

Wire, file names, command line and console say `{start}-{end}` with both ends in it. Inside, and in Postgres'
`int8range`, a range is `[start, stop)`: lengths subtract, neighbours meet, nothing is off by one. `inclusive` and
`Range.edges` are the only two places where one becomes the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

from tracelake.errors import BadInput

MAX_END = 2**63 - 2
"""The last number a range can hold: its `stop`, one further, must still fit an int8."""

_EDGES = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})")


class InvalidRange(BadInput):
    code = "invalid_range"


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """`[start, stop)`, never empty."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= MAX_END + 1:
            raise InvalidRange(
                f"{self.start} to {self.stop - 1} is not a range",
                hint=f"a range starts at 0 or later, ends where it starts or later, and at {MAX_END} at the latest",
            )

    @property
    def edges(self) -> tuple[int, int]:
        """The inclusive form, `(start, end)`: the inverse of `inclusive`."""
        return self.start, self.stop - 1

    def __len__(self) -> int:
        return self.stop - self.start

    def __contains__(self, number: int) -> bool:
        return self.start <= number < self.stop

    def covers(self, other: Range) -> bool:
        return self.start <= other.start and other.stop <= self.stop

    def overlaps(self, other: Range) -> bool:
        return self.start < other.stop and other.start < self.stop


def inclusive(start: int, end: int) -> Range:
    """From the form of the edges, both ends in it."""
    return Range(start, end + 1)


def format_partition_key(span: Range) -> str:
    return "{}-{}".format(*span.edges)


def parse_partition_key(text: str) -> Range:
    match = _EDGES.fullmatch(text)
    if match is None:
        hint = "write start-end as whole numbers without sign or leading zeros, e.g. 1000-1999"
        raise InvalidRange(f"{text[:80]!r} is not a range", hint=hint)
    return inclusive(int(match[1]), int(match[2]))


def is_partition_key(text: str) -> bool:
    """Whether it is `{start}-{end}` exactly as `format_partition_key` writes it, and not some other label."""
    match = _EDGES.fullmatch(text)
    return match is not None and int(match[1]) <= int(match[2]) <= MAX_END


def format_file_part(span: Range) -> str:
    """For names such as `blocks_{start}_{end}.parquet`."""
    return "{}_{}".format(*span.edges)


def split(whole: Range, size: int) -> Iterator[Range]:
    """Chunks of `size` from the start on; the last may be shorter."""
    _check_size(size)
    for start in range(whole.start, whole.stop, size):
        yield Range(start, min(start + size, whole.stop))


def split_aligned(whole: Range, size: int) -> Iterator[Range]:
    """Chunks that end at multiples of `size`, so that requests for different ranges share their inner chunks."""
    _check_size(size)
    start = whole.start
    while start < whole.stop:
        stop = min((start // size + 1) * size, whole.stop)
        yield Range(start, stop)
        start = stop


def merge(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The same numbers as few ranges: sorted, apart, and never touching."""
    merged: list[Range] = []
    for piece in sorted(ranges):
        if merged and piece.start <= merged[-1].stop:
            merged[-1] = Range(merged[-1].start, max(merged[-1].stop, piece.stop))
        else:
            merged.append(piece)
    return tuple(merged)


def intersect(value: Iterable[Range], others: Iterable[Range]) -> tuple[Range, ...]:
    """The numbers in both, merged."""
    left, right = list(merge(value)), list(merge(others))
    shared: list[Range] = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i].overlaps(right[j]):
            shared.append(Range(max(left[i].start, right[j].start), min(left[i].stop, right[j].stop)))
        if left[i].stop <= right[j].stop:
            i += 1
        else:
            j += 1
    return tuple(shared)


def not_replaced(parts: Sequence[tuple[Range, int]]) -> list[tuple[Range, ...]]:
    """Of each range, given with the number of its commit: what no range of a later commit has replaced."""
    edges = sorted({edge for span, _ in parts for edge in (span.start, span.stop)})
    begin = sorted(range(len(parts)), key=lambda index: parts[index][0].start, reverse=True)
    kept: list[list[Range]] = [[] for _ in parts]
    latest: list[tuple[int, int]] = []
    for start, stop in pairwise(edges):
        while begin and parts[begin[-1]][0].start == start:
            index = begin.pop()
            heappush(latest, (-parts[index][1], index))
        while latest and parts[latest[0][1]][0].stop <= start:
            heappop(latest)
        if latest:
            kept[latest[0][1]].append(Range(start, stop))
    return [merge(spans) for spans in kept]


def subtract(value: Iterable[Range], others: Iterable[Range]) -> tuple[Range, ...]:
    """The numbers of `some` that are not in `others`, merged."""
    kept: list[Range] = []
    taken = merge(others)
    first = 0
    for piece in merge(value):
        while first < len(taken) and taken[first].stop <= piece.start:
            first += 1
        kept += _without(piece, taken, first)
    return tuple(kept)


def holes(ranges: Iterable[Range], whole: Range) -> tuple[Range, ...]:
    """What of `whole` no range covers."""
    return subtract([whole], ranges)


def overlapping(ranges: Iterable[Range]) -> tuple[tuple[Range, Range], ...]:
    """Neighbours in order of start that share a number; none at all if no two ranges anywhere do."""
    found: list[tuple[Range, Range]] = []
    widest: Range | None = None
    for piece in sorted(ranges):
        if widest is not None and widest.overlaps(piece):
            found.append((widest, piece))
        if widest is None or piece.stop > widest.stop:
            widest = piece
    return tuple(found)


def _check_size(size: int) -> None:
    if size < 1:
        raise InvalidRange(f"a range cannot be split into chunks of {size}", hint="give a size of 1 or more")


def _without(piece: Range, taken: tuple[Range, ...], first: int) -> Iterator[Range]:
    start = piece.start
    while first < len(taken) and taken[first].start < piece.stop:
        if taken[first].start > start:
            yield Range(start, taken[first].start)
        start = taken[first].stop
        first += 1
    if start < piece.stop:
        yield Range(start, piece.stop)
