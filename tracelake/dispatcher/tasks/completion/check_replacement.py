"""Checks that the outputs of an attempt are not outdated, and that they replace whole partitions.

A claim pins what an attempt reads, so the later claim has the newer rows. An attempt that reads hot rows, which no
claim pins, names the last commit that it has seen (`over`) instead, and repeats its work if another one came between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, pairwise, takewhile

from tracelake.domain.event import RangeScope, partition_key, read_scope
from tracelake.domain.ranges import Range, format_partition_key, merge, subtract
from tracelake.errors import Conflict, Incompatible, InvalidRequest
from tracelake.store.queries import Connection, Row, fetch_rows, queries
from tracelake.wire.task.outputs import OutputBody


@dataclass(frozen=True)
class Partition:
    """A partition of one dataset: written by this attempt, or current."""

    key: str | None
    span: Range | None
    newer: bool = False
    commit: int | None = None
    """Of a current one: since when. Of one written: the last commit that its writer had seen, if it names one."""
    content: Content | None = None
    """Of a current one: what it holds, if that is known."""


@dataclass(frozen=True)
class Content:
    """What a partition holds."""

    hash: bytes
    since: int
    """The commit since which it has held this."""


class CurrentPartition(Row, frozen=True):
    partition_key: str
    start: int | None
    stop: int | None
    commit: int
    newer: bool
    content_hash: bytes | None
    content_since: int

    @property
    def partition(self) -> Partition:
        span = None if self.start is None or self.stop is None else Range(self.start, self.stop)
        content = Content(self.content_hash, self.content_since) if self.content_hash else None
        return Partition(self.partition_key, span, self.newer, self.commit, content)


@dataclass(frozen=True)
class Replacement:
    """What of a completion counts."""

    outputs: Sequence[OutputBody]
    """Those that no attempt claimed later has committed already."""
    contents: Mapping[str, Content]
    """What current partitions hold that the outputs replace, by key."""
    ends_any: bool = True
    """Whether there are current partitions that the outputs replace."""


async def check_replacement(connection: Connection, outputs: Sequence[OutputBody], started_at: datetime) -> Replacement:
    """Of outputs of one dataset, by an attempt that was claimed at `started_at`."""
    written = [part_of(output) for output in outputs]
    _refuse_twice(written)
    sql, asked = queries("complete")["current_partitions"], (outputs[0].dataset_version, *columns_of(written))
    there = [row.partition for row in await fetch_rows(connection, sql, CurrentPartition, *asked, started_at)]
    newer = _Ground([part for part in there if part.newer])
    current = [(output, part) for output, part in zip(outputs, written, strict=True) if not newer.holds(part)]
    _refuse_mixture([part for _, part in current], there)
    ground = _Ground([part for _, part in current])
    _refuse_gaps(ground, there)
    _refuse_unseen([part for _, part in current], there)
    contents = {part.key: part.content for part in there if part.key and part.content}
    ends_any = any(ground.touches(part) for part in there)
    return Replacement([output for output, _ in current], contents, ends_any)


def _refuse_twice(written: Sequence[Partition]) -> None:
    spans = sorted(part.span for part in written if part.span)
    labels = Counter(part.key for part in written if part.key is not None and part.span is None)
    crossed = [format_partition_key(item) for item, other in pairwise(spans) if other.start < item.stop]
    for named in (*crossed, *(label for label, count in labels.items() if count > 1)):
        raise InvalidRequest(
            f"rows of {named} are in two partitions of one completion", where="/outputs", hint="say each row once"
        )


def part_of(output: OutputBody) -> Partition:
    scope = read_scope(partition_key=output.partition_key, start=output.start, end=output.end)
    span = scope.span if isinstance(scope, RangeScope) else None
    return Partition(partition_key(scope), span, commit=output.over)


def columns_of(parts: Sequence[Partition]) -> tuple[list[str | None], list[int | None], list[int | None]]:
    """Keys, starts and stops, for `unnest`."""
    spans = [part.span for part in parts]
    starts, stops = [span.start if span else None for span in spans], [span.stop if span else None for span in spans]
    return [part.key for part in parts], starts, stops


class _Ground:
    """What some partitions cover together. Asked for each of thousands, so it is put in order once."""

    def __init__(self, parts: Iterable[Partition]) -> None:
        parts = list(parts)
        self._keys = {part.key for part in parts if part.key is not None}
        self._spans = merge(part.span for part in parts if part.span)
        self._stops = [span.stop for span in self._spans]

    def holds(self, part: Partition) -> bool:
        return part.key in self._keys if part.span is None else not subtract([part.span], self.near(part.span))

    def touches(self, part: Partition) -> bool:
        return part.key in self._keys or (part.span is not None and bool(self.near(part.span)))

    def near(self, span: Range) -> Sequence[Range]:
        """Those that overlap it, of as few as there can be."""
        first = bisect_right(self._stops, span.start)
        return list(takewhile(lambda item: item.start < span.stop, islice(self._spans, first, None)))


def _refuse_mixture(current: Sequence[Partition], there: Sequence[Partition]) -> None:
    """Ranges and labels in one dataset would hold the same rows twice."""
    ranges = [part.key for part in (*there, *current) if part.span]
    labels = [part.key for part in (*there, *current) if part.key is not None and part.span is None]
    if current and ranges and labels:
        raise Incompatible(
            f"a dataset is partitioned by ranges ({ranges[0]}) or by labels ({labels[0]}), never by both",
            where="/outputs",
            hint="read the input that has the other kind of partitions with `trigger: false`, or use `mode: full`",
        )


def _refuse_gaps(current: _Ground, there: Sequence[Partition]) -> None:
    """A partition is replaced whole, or its remaining rows would be lost; and never by older ones in part."""
    for part in there:
        if part.span is None or not (near := current.near(part.span)):
            continue
        rest = subtract([part.span], near)
        if rest or part.newer:
            raise Conflict(
                f"partition {part.key} would be replaced in part only: {_say(rest) or 'a later attempt wrote it'}",
                where="/outputs",
                hint="write whole partitions, or all those that the new range touches",
            )


def _refuse_unseen(current: Sequence[Partition], there: Sequence[Partition]) -> None:
    """Rows that no claim pins may be older than what was committed since, whichever attempt was claimed first."""
    for part in current:
        for other in there:
            unseen = part.commit is not None and other.commit is not None and other.commit > part.commit
            if unseen and _meet(part, other):
                raise Conflict(
                    f"partition {other.key} was committed while this was made",
                    where="/outputs",
                    hint="make it again, of what is there now",
                )


def _meet(partition: Partition, other: Partition) -> bool:
    return partition.key == other.key or bool(partition.span and other.span and partition.span.overlaps(other.span))


def _say(rest: Sequence[Range]) -> str:
    return ", ".join(f"{format_partition_key(span)} would be lost" for span in rest)
