"""Whether ranges are a partition of another."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from tracelake.domain.ranges import Range


def tiles(ranges: Iterable[Range], whole: Range) -> bool:
    """Whether they cover `whole` once each number: no hole, no overlap, nothing outside."""
    ordered = sorted(ranges)
    return (
        bool(ordered)
        and ordered[0].start == whole.start
        and ordered[-1].stop == whole.stop
        and all(item.stop == following.start for item, following in pairwise(ordered))
    )
