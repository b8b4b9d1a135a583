"""What counts of listed partitions: those of one generation never overlap; of several, the latest commit counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracelake.domain.ranges import Range, inclusive, not_replaced
from tracelake.wire.task_messages import PartitionFiles


def in_force(partitions: Sequence[PartitionFiles]) -> Iterator[tuple[PartitionFiles, tuple[Range, ...] | None]]:
    """Each partition of which something counts, with the numbers that do; None: all of it."""
    spans = [
        inclusive(partition.start, partition.end)
        for partition in partitions
        if partition.start is not None and partition.end is not None
    ]
    if len(spans) < len(partitions):  # they have names instead of ranges, and the names differ
        yield from ((partition, None) for partition in partitions)
        return
    kept = not_replaced([(span, item.commit) for span, item in zip(spans, partitions, strict=True)])
    for partition, whole, left in zip(partitions, spans, kept, strict=True):
        if left:
            yield partition, None if left == (whole,) else left
