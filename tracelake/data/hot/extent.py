"""How far a hot table was written and which numbers a reorg removed: pure arithmetic.

When a new branch is shorter than the old one, the numbers above it do not exist, although Parquet files may still have
the old branch's blocks. So they are recorded as gone until the new branch reaches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelake.errors import BadInput, Conflict


@dataclass(frozen=True)
class Extent:
    """Numbers `gone_from` to `written_to`, both included, are gone; none are if it is None."""

    written_to: int | None = None
    gone_from: int | None = None


def after_write(extent: Extent, numbers: Sequence[int], replace_from: int | None) -> Extent:
    """Return the extent after writing these numbers (ascending); with `replace_from`, all later ones are replaced."""
    if replace_from is not None:
        _check_consecutive(numbers, replace_from)
        first_missing = replace_from + len(numbers)
        _check_no_jump(extent, replace_from)
        return _extent(_highest(extent, numbers), first_missing)
    if extent.gone_from is None or extent.written_to is None:
        return Extent(_highest(extent, numbers))
    again = [number for number in numbers if number >= extent.gone_from]
    if again and again != list(range(extent.gone_from, extent.gone_from + len(again))):
        raise _jump(extent.gone_from, again[0])
    return _extent(_highest(extent, numbers), extent.gone_from + len(again))


def _extent(written_to: int | None, first_missing: int) -> Extent:
    gone = written_to is not None and first_missing <= written_to
    return Extent(written_to, first_missing if gone else None)


def _highest(extent: Extent, numbers: Sequence[int]) -> int | None:
    return max([*numbers[-1:], *([] if extent.written_to is None else [extent.written_to])], default=None)


def _check_consecutive(numbers: Sequence[int], replace_from: int) -> None:
    if list(numbers) != list(range(replace_from, replace_from + len(numbers))):
        raise BadInput(
            "blocks that replace all from a number on must start there and leave none out",
            where=f"replace_from {replace_from}",
        )


def _check_no_jump(extent: Extent, first: int) -> None:
    if extent.gone_from is not None and first > extent.gone_from:
        raise _jump(extent.gone_from, first)


def _jump(gone_from: int, first: int) -> Conflict:
    return Conflict(
        f"block {gone_from} was removed by a reorg and must be written again before block {first}",
        where=f"block {first}",
        hint=f"follow the chain from block {gone_from}",
    )
