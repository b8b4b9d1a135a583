"""Whether what an attempt wrote is still news, and whether it replaces whole partitions and nothing but them.

A claim pins what an attempt reads, so the later claim has the newer rows. An attempt that reads hot rows, which no
claim pins, says instead which commit it has seen (`over`), and makes it again if another one came between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from trace_platform.contracts import OutputBody
from trace_platform.domain.event import RangeScope, partition_key, read_scope
from trace_platform.domain.ranges import Range, format_partition_key, intersect, subtract
from trace_platform.errors import Conflict
from trace_platform.store.queries import queries

Connection = asyncpg.pool.PoolConnectionProxy


@dataclass(frozen=True)
class _Part:
    """A partition of one dataset: written by this attempt, or in force."""

    key: str | None
    span: Range | None
    newer: bool = False
    commit: int | None = None
    """Of one in force: since when. Of one written: the last one that its writer had seen, if it says so."""


async def still_news(
    connection: Connection, outputs: Sequence[OutputBody], started_at: datetime
) -> Sequence[OutputBody]:
    """Those outputs of one dataset that no attempt claimed after `started_at` has committed already."""
    written = {id(output): _part(output) for output in outputs}
    rows = await connection.fetch(
        queries("complete")["in_force"],
        outputs[0].dataset_version,
        [part.key for part in written.values()],
        [part.span and part.span.start for part in written.values()],
        [part.span and part.span.stop for part in written.values()],
        started_at,
    )
    there = [_in_force(row) for row in rows]
    newer = [part for part in there if part.newer]
    news = [output for output in outputs if not _covered(written[id(output)], newer)]
    fresh = [written[id(output)] for output in news]
    _refuse_gaps(fresh, there)
    _refuse_unseen(fresh, there)
    return news


def _refuse_gaps(news: Sequence[_Part], there: Sequence[_Part]) -> None:
    """A partition is replaced whole, or its remaining rows would be lost; and never by older ones in part."""
    fresh = [part.span for part in news if part.span]
    for part in there:
        if part.span is None or not intersect(fresh, [part.span]):
            continue
        rest = subtract([part.span], fresh)
        if rest or part.newer:
            raise Conflict(
                f"partition {part.key} would be replaced in part only: {_say(rest) or 'a later attempt wrote it'}",
                where="/outputs",
                hint="write whole partitions, or all those that the new range touches",
            )


def _refuse_unseen(news: Sequence[_Part], there: Sequence[_Part]) -> None:
    """What was made of rows that no claim pins may be older than what came since, whoever was claimed first."""
    for part in news:
        for other in there:
            unseen = part.commit is not None and other.commit is not None and other.commit > part.commit
            if unseen and _meet(part, other):
                raise Conflict(
                    f"partition {other.key} was committed while this was made",
                    where="/outputs",
                    hint="make it again, of what is there now",
                )


def _meet(one: _Part, other: _Part) -> bool:
    return one.key == other.key or bool(one.span and other.span and one.span.overlaps(other.span))


def _say(rest: Sequence[Range]) -> str:
    return ", ".join(f"{format_partition_key(span)} would be lost" for span in rest)


def _covered(part: _Part, newer: Sequence[_Part]) -> bool:
    if part.span is None:
        return any(other.key == part.key for other in newer)
    return not subtract([part.span], [other.span for other in newer if other.span])


def _part(output: OutputBody) -> _Part:
    scope = read_scope(partition_key=output.partition_key, start=output.start, end=output.end)
    span = scope.span if isinstance(scope, RangeScope) else None
    return _Part(partition_key(scope), span, commit=output.over)


def _in_force(row: asyncpg.Record) -> _Part:
    span = Range(row["start"], row["stop"]) if row["start"] is not None else None
    return _Part(row["partition_key"], span, row["newer"], row["commit"])
