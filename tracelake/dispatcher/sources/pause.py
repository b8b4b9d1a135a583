"""Pauses and resumes an always-on source. A paused source is drained, and stays paused across deploys."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import AfterCommit, Signal
from tracelake.errors import Conflict, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.identity import User
from tracelake.store.queries import Row, find_row, queries
from tracelake.wire.user_dags import PauseAnswer


class SourceJob(Row, frozen=True):
    active: UUID | None
    job_id: UUID | None
    kind: str | None


async def pause_source(pool: asyncpg.Pool, after: AfterCommit, user: User, dag: str, job: str) -> PauseAnswer:
    job_id = await _find_source(pool, user.org_id, dag, job)
    crash_point("pause_source.before_commit")
    changed = await pool.fetchval(queries("sources")["insert_pause"], user.org_id, job_id, user.id)
    crash_point("pause_source.after_commit")
    after.sources.notify()
    after.stops.notify()
    return PauseAnswer(dag=dag, job=job, paused=True, changed=bool(changed))


async def resume_source(pool: asyncpg.Pool, sources: Signal, user: User, dag: str, job: str) -> PauseAnswer:
    job_id = await _find_source(pool, user.org_id, dag, job)
    crash_point("resume_source.before_commit")
    changed = await pool.fetchval(queries("sources")["end_pause"], user.org_id, job_id)
    crash_point("resume_source.after_commit")
    sources.notify()
    return PauseAnswer(dag=dag, job=job, paused=False, changed=bool(changed))


async def _find_source(pool: asyncpg.Pool, org_id: UUID, dag: str, job: str) -> UUID:
    where = f"{dag}.{job}"
    source = await find_row(pool, queries("sources")["find_job"], SourceJob, org_id, dag, job)
    if source is None or (source.active is not None and source.job_id is None):
        raise NotFound(f"there is no job {where}", where=where, hint="`trace dag show` lists the jobs")
    if source.active is None:
        raise Conflict(f"DAG {dag!r} is not active", where=where, hint="activate it first")
    if source.job_id is None or source.kind != "always_on":
        raise Conflict(f"{where} is not an always-on source", where=where)
    return source.job_id
