"""Selects the current partitions: those of one generation never overlap; of several, the latest commit wins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracelake.domain.ranges import Range, inclusive, not_replaced
from tracelake.wire.task.outputs import PartitionFiles


def current_partitions(
    partitions: Sequence[PartitionFiles],
) -> Iterator[tuple[PartitionFiles, tuple[Range, ...] | None]]:
    """Yield each partition with current rows, and the numbers of those rows; None: all of them."""
    spans = [
        inclusive(partition.start, partition.end)
        for partition in partitions
        if partition.start is not None and partition.end is not None
    ]
    if len(spans) < len(partitions):  # labelled partitions have no ranges, and their labels differ
        yield from ((partition, None) for partition in partitions)
        return
    kept = not_replaced([(span, item.commit) for span, item in zip(spans, partitions, strict=True)])
    for partition, whole, left in zip(partitions, spans, kept, strict=True):
        if left:
            yield partition, None if left == (whole,) else left
