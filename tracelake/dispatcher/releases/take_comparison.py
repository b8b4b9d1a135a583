"""Hands comparisons of releases to the Query service under a lease, and stores what it reports.

The commit of side A is taken first, and that of side B after the release has processed all that its inputs hold: what
only A has is then missing in B, and not late. Where inputs never rest, B is taken as it is after a while, and blocks
that A alone has at its end are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.datasets.find_key import find_key
from tracelake.dispatcher.datasets.resolve_relations import files_of
from tracelake.dispatcher.releases.compare import AGAIN
from tracelake.dispatcher.releases.show import count_units
from tracelake.dispatcher.signal import AfterCommit
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Connection, Row, fetch_row, find_row, queries
from tracelake.wire.internal.comparisons import ComparisonHeld, ComparisonReport, ComparisonTaken, ComparisonWork
from tracelake.wire.internal.queries import ColdFilesAnswer

LEASE: Final = timedelta(seconds=60)
SHORTEST: Final = 0.1
"""Seconds. A comparison that is due may be locked by another Query service that takes it now."""
LONGEST_WAIT: Final = timedelta(seconds=30)
"""How long a comparison waits for the release to have processed everything."""


class DueComparison(Row, frozen=True):
    release_id: UUID
    dataset_uuid: UUID
    org_id: UUID
    dataset: str
    former_version: UUID
    dataset_version: UUID
    former_commit: int | None
    dag_version_id: UUID
    is_late: bool
    is_idle: bool


class Leased(Row, frozen=True):
    lease_token: UUID
    commit: int | None


async def take_comparison(pool: asyncpg.Pool, after: AfterCommit) -> ComparisonTaken:
    mark = after.comparisons.mark
    work = await _take(pool)
    wait: float | None = None if work else await pool.fetchval(queries("comparisons")["next_due"])
    return ComparisonTaken(work=work, next_in_seconds=None if wait is None else max(wait, SHORTEST), mark=mark)


async def _take(pool: asyncpg.Pool) -> ComparisonWork | None:
    sql = queries("comparisons")
    async with pool.acquire() as connection, connection.transaction():
        due = await find_row(connection, sql["next_comparison"], DueComparison, LONGEST_WAIT)
        if due is None:
            return None
        has_all = due.is_idle and await _has_processed_all(connection, due.release_id)
        named = due.release_id, due.dataset_uuid
        if not has_all and not due.is_late:
            await connection.execute(sql["compare_later"], *named, AGAIN)
            return None
        leased = await fetch_row(connection, sql["take_comparison"], Leased, *named, due.former_commit, LEASE)
        crash_point("take_comparison.before_commit")
    crash_point("take_comparison.after_commit")
    return await _work(pool, due, leased, has_all=has_all)


async def report_comparison(pool: asyncpg.Pool, after: AfterCommit, report: ComparisonReport) -> ComparisonHeld:
    result = None if report.result is None else msgspec.to_builtins(report.result)
    named = report.release_id, report.dataset_uuid, report.lease_token
    found = report.steps, report.steps_planned, result, report.error, report.retryable
    wanted: bool = await pool.fetchval(queries("comparisons")["report_comparison"], *named, *found, LEASE)
    crash_point("report_comparison.after_commit")
    if report.result is not None or report.error is not None:
        after.releases.notify()
    return ComparisonHeld(wanted=wanted)


async def _has_processed_all(connection: Connection, release_id: UUID) -> bool:
    counts = (await count_units(connection, release_id)).values()
    return not any(of_dag["missing"] or of_dag["pending"] for of_dag in counts)


async def _work(pool: asyncpg.Pool, due: DueComparison, leased: Leased, *, has_all: bool) -> ComparisonWork:
    sides = ((due.former_version, due.former_commit), (due.dataset_version, leased.commit))
    pins = {(version, commit): [version] for version, commit in sides if commit is not None}
    files = await files_of(pool, pins, set())
    a, b = (None if commit is None else files[version, commit] for version, commit in sides)
    span = _span(a, b, has_all=has_all)
    return ComparisonWork(
        release_id=due.release_id,
        dataset_uuid=due.dataset_uuid,
        org_id=due.org_id,
        lease_token=leased.lease_token,
        dataset=due.dataset,
        key=await find_key(pool, due.dataset_uuid, due.dag_version_id),
        a=a,
        b=b,
        start=span[0] if span else None,
        end=span[1] if span else None,
    )


def _span(a: ColdFilesAnswer | None, b: ColdFilesAnswer | None, *, has_all: bool) -> tuple[int, int] | None:
    """The blocks to compare where B has others at its end; if B is behind, without what it has not processed."""
    here, there = (_blocks(side) for side in (a, b))
    if not here or not there:
        return None
    end = max(stop for _, stop in here)
    last = max(stop for _, stop in there)
    if last == end or (last < end and has_all):
        return None
    return min(start for start, _ in (*here, *there)), min(end, last)


def _blocks(side: ColdFilesAnswer | None) -> Sequence[tuple[int, int]]:
    partitions = (side.partitions or ()) if side is not None else ()
    return [(part.start, part.end) for part in partitions if part.start is not None and part.end is not None]
