"""Prunes files that a query or a task cannot need: compares the needed block numbers with those of each file.

Spark would find the same by opening every file, which for a thousand files takes longer than the query. A file whose
numbers are not known is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from tracelake.domain.sql.number_spans import Spans, overlap
from tracelake.wire.task.markers import NUMBER, ColumnEntry
from tracelake.wire.task.outputs import FilesAnswer

WHOLE_NUMBERS: Final = frozenset({"bigint", "int"})
F = TypeVar("F")
Numbers = tuple[int, int]
"""The smallest and largest number of a file."""


def has_number(columns: Iterable[ColumnEntry]) -> bool:
    """Whether the table has the block number as an integer column."""
    return any(column.name.casefold() == NUMBER and column.type in WHOLE_NUMBERS for column in columns)


def numbers_in(file: Mapping[str, Any]) -> Numbers | None:
    """Return the numbers that the writer noted; None: not known."""
    numbers = file.get("numbers")
    return None if numbers is None else (numbers[0], numbers[1])


def needed_of(files: Iterable[F], numbers: Callable[[F], Numbers | None], needed: Spans) -> tuple[F, ...]:
    def is_needed(file: F) -> bool:
        known = numbers(file)
        return known is None or overlap(needed, *known)

    return tuple(file for file in files if is_needed(file))


def narrowed_listing(listing: FilesAnswer, needed: Spans) -> FilesAnswer:
    """At least one file stays: Spark plans a table without files differently, which takes longer."""
    pairs = [(part, needed_of(part.files, numbers_in, needed)) for part in listing.partitions]
    if not any(files for _, files in pairs):
        pairs = [(part, tuple(part.files[:1])) for part in listing.partitions if part.files][:1]
    partitions = [msgspec.structs.replace(part, files=list(files)) for part, files in pairs if files]
    return msgspec.structs.replace(listing, partitions=partitions)


def columns_in(listing: FilesAnswer) -> Sequence[ColumnEntry]:
    return msgspec.convert(list(listing.columns or ()), list[ColumnEntry])
