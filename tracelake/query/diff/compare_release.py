"""Compares datasets of releases, as the Dispatcher asks for it: takes one under a lease, and reports what was found.

A process that ends loses nothing: its lease runs out, and the comparison is taken again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from tracelake.domain.ranges import inclusive
from tracelake.errors import QueryTimeout, TraceError, Unavailable
from tracelake.query.checked_query import Caller, Relation
from tracelake.query.diff.run import DiffRun, Keys, has_numbers
from tracelake.query.engine import QueryEngine
from tracelake.query.resolve import cold_files
from tracelake.runtime.retry import delays
from tracelake.settings import QuerySettings
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.changes import wait_until_due
from tracelake.wire.internal.comparisons import ComparisonReport, ComparisonWork
from tracelake.wire.internal.queries import ColdFilesAnswer
from tracelake.wire.user.diff import DiffAnswer
from tracelake.wire.user.releases import ColumnShare, ReleaseDiff

REPORT_SECONDS: Final = 2.0
"""Progress is reported so often, and the lease extended by it."""
log = structlog.get_logger()


@dataclass(frozen=True)
class ReleaseComparer:
    dispatcher: DispatcherClient
    engine: QueryEngine
    settings: QuerySettings

    async def run(self) -> None:
        """Compares until it is cancelled."""
        pauses = delays()
        while True:
            try:
                await self.once()
                pauses = delays()
                continue
            except TraceError as refusal:
                log.info("comparisons wait for the Dispatcher", because=refusal.message)
            except Exception:
                # A bug must not end it: promotions wait for it. The lease runs out, and the comparison is taken again.
                log.exception("a comparison failed")
            await asyncio.sleep(next(pauses))

    async def once(self) -> None:
        """Makes the comparison that is due, or waits until one may be."""
        taken = await self.dispatcher.take_comparison()
        if taken.work is None:
            await wait_until_due(taken.next_in_seconds, taken.mark, self.dispatcher.comparison_changes)
        else:
            await self._make(taken.work)

    async def _make(self, work: ComparisonWork) -> None:
        run = DiffRun(self.engine, self.settings, Caller(work.org_id, ("release", work.release_id)), _sides(work))
        comparing = asyncio.create_task(_compare(run, work))
        try:
            if await self._wanted_until_done(comparing, run, work):
                await self.dispatcher.report_comparison(_outcome(comparing, run, work))
        finally:
            comparing.cancel()
            await asyncio.wait({comparing})

    async def _wanted_until_done(
        self, comparing: asyncio.Task[ReleaseDiff], run: DiffRun, work: ComparisonWork
    ) -> bool:
        while True:
            done, _ = await asyncio.wait({comparing}, timeout=REPORT_SECONDS)
            if done:
                return True
            with suppress(Unavailable):  # the lease is longer than a restart of the Dispatcher
                if not await self.dispatcher.report_comparison(_report(run, work)):
                    return False


async def _compare(run: DiffRun, work: ComparisonWork) -> ReleaseDiff:
    a, b = run.whole
    if not a.columns or not b.columns:
        return _with_one_side(work, a, b)
    span = None
    if work.start is not None and work.end is not None and has_numbers(a, b):
        span = inclusive(work.start, work.end)
    found = await run.compare(work.dataset, Keys((), work.key), span, rows=0)
    return _figures(work, found, None if span is None else span.edges)


def _sides(work: ComparisonWork) -> tuple[Relation, Relation]:
    return _relation(work, work.a), _relation(work, work.b)


def _relation(work: ComparisonWork, side: ColdFilesAnswer | None) -> Relation:
    """Without a commit: no files and no columns, of a generation that does not matter."""
    if side is None:
        return Relation(work.dataset, work.dataset_uuid, work.dataset_uuid, 0, hot=False, cold=None)
    cold = cold_files(side)
    return Relation(work.dataset, work.dataset_uuid, side.dataset_version, side.commit, hot=False, cold=cold)


def _with_one_side(work: ComparisonWork, a: Relation, b: Relation) -> ReleaseDiff:
    """Nothing was ever committed to the other: its rows need not be read."""
    rows_a, rows_b = (side.cold.rows if side.cold is not None else 0 for side in (a, b))
    return ReleaseDiff(
        former_commit=None if work.a is None else work.a.commit,
        commit=None if work.b is None else work.b.commit,
        rows_a=rows_a,
        rows_b=rows_b,
        key=[],
        note="nothing was committed to " + " and ".join(n for n, side in (("A", a), ("B", b)) if not side.columns),
        only_a=rows_a,
        only_b=rows_b,
        changed=0,
        equal=0,
        schema=[],
        columns=[],
    )


def _figures(work: ComparisonWork, found: DiffAnswer, blocks: tuple[int, int] | None) -> ReleaseDiff:
    """Without values of rows: whoever may see a release need not be allowed to read its datasets."""
    return ReleaseDiff(
        former_commit=None if work.a is None else work.a.commit,
        commit=None if work.b is None else work.b.commit,
        rows_a=found.a.rows,
        rows_b=found.b.rows,
        key=found.key,
        note=found.note,
        only_a=found.only_a,
        only_b=found.only_b,
        changed=found.changed,
        equal=found.equal,
        schema=found.schema,
        columns=[ColumnShare(column=item.column, equal=item.equal, share=item.share) for item in found.columns],
        start=blocks[0] if blocks else None,
        end=blocks[1] if blocks else None,
    )


def _report(
    run: DiffRun,
    work: ComparisonWork,
    *,
    result: ReleaseDiff | None = None,
    error: str | None = None,
    retryable: bool = False,
) -> ComparisonReport:
    return ComparisonReport(
        release_id=work.release_id,
        dataset_uuid=work.dataset_uuid,
        lease_token=work.lease_token,
        steps=run.steps,
        steps_planned=run.steps_planned,
        result=result,
        error=error,
        retryable=retryable,
    )


def _outcome(comparing: asyncio.Task[ReleaseDiff], run: DiffRun, work: ComparisonWork) -> ComparisonReport:
    failure = comparing.exception()
    if failure is None:
        return _report(run, work, result=comparing.result())
    if isinstance(failure, TraceError):
        # One that took too long would take as long again, and keep Spark from queries.
        retryable = failure.retryable and not isinstance(failure, QueryTimeout)
        hint = f" ({failure.hint})" if failure.hint else ""
        return _report(run, work, error=failure.message + hint, retryable=retryable)
    log.error("a comparison failed", org=str(work.org_id), dataset=work.dataset, exc_info=failure)
    return _report(run, work, error=f"the Query service failed: {type(failure).__name__}", retryable=True)
