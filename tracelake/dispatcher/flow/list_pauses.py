"""Lists the jobs that are paused, why, and how much waits for each."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import asyncpg

from tracelake.store.queries import Row, fetch_rows, queries
from tracelake.wire.user.dags import PausedJob, PauseList


class PauseRow(Row, frozen=True):
    dag: str
    job: str
    reason: str
    priority: str
    cause_dag: str | None
    cause_job: str | None
    threshold: float | None
    observed: float | None
    since: datetime
    held: int


async def list_pauses(pool: asyncpg.Pool, org_id: UUID) -> PauseList:
    rows = await fetch_rows(pool, queries("flow")["list_pauses"], PauseRow, org_id)
    return PauseList(pauses=[_paused(row) for row in rows])


def pause_sentence(reason: str, cause: str | None, threshold: float | None, observed: float | None) -> str:
    """Why a job is paused, as `why` and lists say it."""
    if reason == "depth":
        return f"paused because {observed:,.0f} tasks of {cause} were queued (limit {threshold:,.0f})"
    if reason == "age":
        return f"paused because a task of {cause} had been queued for {observed:,.0f} s (limit {threshold:,.0f} s)"
    if reason == "failure":
        return "paused because a task of it failed (`pause_on_failure`)"
    return "paused by hand"


def how_it_resumes(job: str, cause: str | None) -> str:
    """What a user can do about a paused `dag.job`. `cause`: the queue that pauses it; None: somebody resumes it."""
    if cause is None:
        return f"`trace job resume {job.replace('.', ' ')}`"
    return "it resumes by itself; `trace job pauses` lists what is paused"


def _paused(row: PauseRow) -> PausedJob:
    cause = f"{row.cause_dag}.{row.cause_job}" if row.cause_job else None
    return PausedJob(
        dag=row.dag,
        job=row.job,
        reason=row.reason,
        because=pause_sentence(row.reason, cause, row.threshold, row.observed),
        cause=cause,
        threshold=row.threshold,
        observed=row.observed,
        since=row.since,
        held=row.held,
    )
