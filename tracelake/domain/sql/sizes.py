"""How large a value can become: upper bounds for what each function makes of its arguments.

A value is known by its bytes, by its elements if it has any, and by its range if it is a number or a time. What a
column holds is not known here; `COLUMN` is what an ordinary one may hold. Bounds are generous where a function cannot
make much of little, and exact where it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

SCALAR: Final = 16.0
"""Bytes of a number, a time or a truth value."""
DAY: Final = 86_400.0
LISTED: Final = 1_000.0
"""Rows of a table that one list of `collect_list` and the like is taken to hold."""


@dataclass(frozen=True, slots=True)
class Size:
    """Upper bounds of a value. `low` and `high`: its range, as a number, or in seconds for a time or interval."""

    bytes: float = SCALAR
    count: float = 0.0
    item: Size | None = None
    low: float = -inf
    high: float = inf
    kind: str = "number"
    """`time` and `interval` are not numbers; `clock` is a time in seconds from now."""
    work: float = 1.0
    """Steps to compute it for one row."""
    weight: float = 1.0
    """Parts of the expression after its columns are inlined."""

    def at_least(self, other: Size) -> Size:
        """Either of the two."""
        item = self.item.at_least(other.item) if self.item and other.item else self.item or other.item
        return replace(
            self,
            bytes=max(self.bytes, other.bytes),
            count=max(self.count, other.count),
            item=item,
            low=min(self.low, other.low) if self.kind == other.kind else -inf,
            high=max(self.high, other.high) if self.kind == other.kind else inf,
            work=1.0,
        )

    def there(self) -> Size:
        """The same as a value that is there already: the steps to it were counted where it was made."""
        return replace(self, work=1.0)


COLUMN: Final = Size(256, 64, Size(64, 16, Size(64)))


class UnknownSize(Exception):
    """An argument that determines the size is not known before the query runs."""


def either(sizes: Sequence[Size]) -> Size:
    found = sizes[0].there() if sizes else Size()
    for other in sizes[1:]:
        found = found.at_least(other)
    return found


def listed(item: Size, rows: float) -> Size:
    return Size((item.bytes + SCALAR) * rows, rows, item.there())
