"""Leaves out files that a query or a task cannot need: the block numbers that count, against what each file holds.

Spark plans with what is left. It would find out the same by opening every file, which for a thousand of them takes
longer than the query. What a file does not say is not guessed: it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from tracelake.domain.sql.number_spans import Spans, overlap
from tracelake.wire.markers import NUMBER, ColumnEntry
from tracelake.wire.task_messages import FilesAnswer

WHOLE_NUMBERS: Final = frozenset({"bigint", "int"})
F = TypeVar("F")
Numbers = tuple[int, int]
"""The least and the greatest of a file."""


def has_number(columns: Iterable[ColumnEntry]) -> bool:
    """Whether the column by which files are told apart is there, as whole numbers."""
    return any(column.name.casefold() == NUMBER and column.type in WHOLE_NUMBERS for column in columns)


def numbers_in(file: Mapping[str, Any]) -> Numbers | None:
    """As its writer has noted them; None: not known."""
    numbers = file.get("numbers")
    return None if numbers is None else (numbers[0], numbers[1])


def needed_of(files: Iterable[F], numbers: Callable[[F], Numbers | None], needed: Spans) -> tuple[F, ...]:
    def is_needed(file: F) -> bool:
        known = numbers(file)
        return known is None or overlap(needed, *known)

    return tuple(file for file in files if is_needed(file))


def narrowed_listing(found: FilesAnswer, needed: Spans) -> FilesAnswer:
    """At least one file stays, as in a query: a table without files is made in another way, which takes longer."""
    kept = [(part, needed_of(part.files, numbers_in, needed)) for part in found.partitions]
    if not any(files for _, files in kept):
        kept = [(part, tuple(part.files[:1])) for part in found.partitions if part.files][:1]
    partitions = [msgspec.structs.replace(part, files=list(files)) for part, files in kept if files]
    return msgspec.structs.replace(found, partitions=partitions)


def columns_in(found: FilesAnswer) -> Sequence[ColumnEntry]:
    return msgspec.convert(list(found.columns or ()), list[ColumnEntry])
