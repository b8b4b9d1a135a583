"""Limits of a cutover: how far a dataset of a release may differ from the one that serves. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

CutoverLimit = int | str
"""A count, or a percentage such as `0.5%` of the rows that serve."""

_PERCENTAGE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%")
MOST_COUNT: Final = 10**15
WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class Figures:
    """What a comparison found: A serves, B is what the release has built."""

    rows_a: int
    rows_b: int
    only_a: int
    only_b: int
    changed: int
    by_key: bool
    """False: whole rows were compared. A row with another value is then one that only A has and one that only B has."""


@dataclass(frozen=True, slots=True)
class Exceeded:
    limit: str
    allowed: CutoverLimit
    figure: int
    of: int
    """The rows that serve."""

    def __str__(self) -> str:
        what = self.limit.removeprefix("max_").replace("_", " ")
        share = f" ({100 * self.figure / self.of:.4g}% of {self.of:,} rows)" if self.of else ""
        return f"{what}: {self.figure:,}{share}, and `{self.limit}` is {self.allowed}"


LIMITS: Final = ("max_changed_rows", "max_missing_keys", "max_added_rows", "max_row_count_change")


def read_limit(value: object) -> CutoverLimit | None:
    """None if it is neither a count nor a percentage from 0 to 100."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value <= MOST_COUNT else None
    if isinstance(value, str) and (share := _share(value)) is not None and share <= 1:
        return value
    return None


def exceeded(limits: Mapping[str, CutoverLimit], found: Figures) -> Iterator[Exceeded]:
    for name, allowed in limits.items():
        figure = _figure(name, found)
        most = allowed if isinstance(allowed, int) else (_share(allowed) or 0) * found.rows_a
        if figure > most:
            yield Exceeded(name, allowed, figure, found.rows_a)


def _figure(name: str, found: Figures) -> int:
    match name:
        case "max_changed_rows":
            # Without a key it is not known which of the rows were changed and which replaced: any of them counts.
            return found.changed if found.by_key else max(found.only_a, found.only_b)
        case "max_missing_keys":
            return found.only_a
        case "max_added_rows":
            return found.only_b
        case "max_row_count_change":
            return abs(found.rows_b - found.rows_a)
        case _:
            raise ValueError(name)


def _share(text: str) -> Fraction | None:
    match = _PERCENTAGE.fullmatch(text)
    return None if match is None else Fraction(match[1]) / WHOLE
