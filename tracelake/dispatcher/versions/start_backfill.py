"""A user starts a backfill: it is checked and counted, then stored for the loop. Next: `versions/run_backfills.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import Signal
from tracelake.dispatcher.versions.compare import Read, UnitState, list_reads, states
from tracelake.dispatcher.versions.scope import KnownJob, list_known, require_job
from tracelake.dispatcher.versions.show_backfills import show_backfill
from tracelake.domain.ranges import InvalidRange, Range, format_partition_key, inclusive, subtract
from tracelake.errors import Conflict, InvalidRequest
from tracelake.runtime.crash_points import crash_point
from tracelake.store.identity import User
from tracelake.store.queries import Queryable, Row, fetch_rows, queries
from tracelake.wire.user.backfills import BackfillAnswer, BackfillRequest

MANUAL = "manual"


@dataclass(frozen=True)
class BackfillPlan:
    job: str | None
    span: Range | None
    planned: int
    there: int


class SourceOutput(Row, frozen=True):
    job_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID


class SentRange(Row, frozen=True):
    start: int
    stop: int


async def start_backfill(
    pool: asyncpg.Pool, signal: Signal, user: User, dag: str, request: BackfillRequest
) -> BackfillAnswer:
    plan = await _plan(pool, user.org_id, dag, request)
    if request.dry_run or not plan.planned:
        return BackfillAnswer(planned=plan.planned, there=plan.there, backfill=None)
    crash_point("start_backfill.before_commit")
    found: UUID = await pool.fetchval(
        queries("backfills")["insert_backfill"],
        user.org_id,
        dag,
        plan.job,
        plan.span.start if plan.span else None,
        plan.span.stop if plan.span else None,
        request.order == "newest",
        request.again,
        request.tasks,
        request.hours,
        plan.planned,
        user.id,
        request.requests,
        request.bytes,
    )
    crash_point("start_backfill.after_commit")
    signal.notify()
    stored = await show_backfill(pool, user.org_id, found)
    return BackfillAnswer(planned=plan.planned, there=plan.there, backfill=stored)


async def missing_ranges(database: Queryable, output: SourceOutput, span: Range) -> Sequence[Range]:
    """The blocks of the range that the source has sent no event about."""
    values = output.dataset_uuid, output.dataset_version, span.start, span.stop
    sent = await fetch_rows(database, queries("backfills")["list_sent_ranges"], SentRange, *values)
    return subtract([span], [Range(item.start, item.stop) for item in sent])


async def source_outputs(database: Queryable, org_id: UUID, dag: str, job: str) -> list[SourceOutput]:
    return await fetch_rows(database, queries("backfills")["list_outputs"], SourceOutput, org_id, dag, job)


async def _plan(pool: asyncpg.Pool, org_id: UUID, dag: str, request: BackfillRequest) -> BackfillPlan:
    span = _span(request)
    jobs = require_job(await list_known(pool, org_id), dag, request.job)
    chosen = _chosen(dag, request, jobs, span)
    if chosen is not None and chosen.source is not None:
        return await _plan_source(pool, org_id, chosen, request, span)
    job = chosen.job_name if chosen else None
    reads = await list_reads(pool, org_id, dag, job)
    if job is not None:
        _refuse_effects(dag, reads)
    counts = await _count(pool, [read for read in reads if read.takes_history], span)
    if span is not None and not counts.total():
        raise InvalidRequest(
            f"no input of {dag}.{job} has a partition in {format_partition_key(span)}",
            where="/start",
            hint="`trace dataset show` prints the blocks of a dataset; a manual source is backfilled by its own name",
        )
    redone = counts["done"] + counts["failed"] if request.again else 0
    return BackfillPlan(
        job, span, counts["missing"] + redone, counts["done"] + counts["pending"] - (redone and counts["done"])
    )


def _span(request: BackfillRequest) -> Range | None:
    if request.start is None and request.end is None:
        return None
    if request.start is None or request.end is None:
        missing = "/start" if request.start is None else "/end"
        raise InvalidRequest("a range needs both its start and its end", where=missing)
    try:
        return inclusive(request.start, request.end)
    except InvalidRange as wrong:
        raise InvalidRequest(wrong.message, where="/start", hint=wrong.hint) from None


def _chosen(dag: str, request: BackfillRequest, jobs: Sequence[KnownJob], span: Range | None) -> KnownJob | None:
    """The job that is backfilled; None: all that read something."""
    if request.job is not None:
        return jobs[0]
    if span is None:
        return None
    manual = [job for job in jobs if job.source == MANUAL]
    if len(manual) != 1:
        names = ", ".join(str(job.job_name) for job in (manual or jobs))
        raise InvalidRequest(
            f"{dag} has {len(manual)} manual sources: name the job to backfill", where="/job", hint=f"one of: {names}"
        )
    return manual[0]


async def _plan_source(
    pool: asyncpg.Pool, org_id: UUID, job: KnownJob, request: BackfillRequest, span: Range | None
) -> BackfillPlan:
    name = f"{job.dag_name}.{job.job_name}"
    if job.source != MANUAL:
        hint = "name a job that reads it"
        raise Conflict(
            f"{name} is a source of kind {job.source}: it decides itself what it reads", where=name, hint=hint
        )
    if span is None:
        raise InvalidRequest(f"{name} is a manual source, which lacks nothing", where="/job", hint="give a range")
    if request.tasks is not None:
        hint = "limit the hours, or backfill the job that reads it"
        raise InvalidRequest(f"{name} is a manual source, which runs no tasks", where="/tasks", hint=hint)
    if request.again:
        hint = "`trace invalidate DATASET --range A-B`, or backfill the job that reads it"
        raise InvalidRequest(f"{name} is a manual source, which processes nothing", where="/again", hint=hint)
    outputs = await source_outputs(pool, org_id, job.dag_name, str(job.job_name))
    missing = max([sum(map(len, await missing_ranges(pool, output, span))) for output in outputs], default=0)
    return BackfillPlan(job.job_name, span, missing, len(span) - missing)


def _refuse_effects(dag: str, reads: Sequence[Read]) -> None:
    for read in reads:
        if not read.takes_history:
            raise Conflict(
                f"{dag}.{read.job_name} has effects outside its own datasets, which are not repeated for the past",
                where=f"{dag}.{read.job_name}",
                hint="`replay: true` in the job allows it",
            )


async def _count(pool: asyncpg.Pool, reads: Sequence[Read], span: Range | None) -> Counter[UnitState]:
    counts: Counter[UnitState] = Counter()
    for read in reads:
        async for page in states(pool, read, within=span):
            counts.update(state for _, state in page)
    return counts
