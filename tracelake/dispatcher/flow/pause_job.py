"""Pauses and resumes a job of any kind. It stays paused across deploys.

A reactive job gets no new tasks: what would become one waits, in order, and tasks that it has already are run. An
always-on source is drained. The slots of a cron source are recorded as paused, deliveries to a webhook are accepted and
held, and a manual source is not fired.
"""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.operators import makes_task
from tracelake.errors import Conflict, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.identity import User
from tracelake.store.queries import Connection, Queryable, Row, find_row, queries
from tracelake.wire.user.dags import PauseAnswer

RELEASED_AT_ONCE = 1_000


class FoundJob(Row, frozen=True):
    active: UUID | None
    job_id: UUID | None
    kind: str | None
    """Of source; None for a reactive job."""
    operator: str | None
    paused: bool


async def pause_job(pool: asyncpg.Pool, after: AfterCommit, user: User, dag: str, job: str) -> PauseAnswer:
    found = await _find_job(pool, user.org_id, dag, job)
    crash_point("pause_job.before_commit")
    changed = await pool.fetchval(queries("sources")["insert_pause"], user.org_id, found.job_id, user.id)
    crash_point("pause_job.after_commit")
    for signal in (after.sources, after.stops):
        signal.notify()
    return PauseAnswer(dag=dag, job=job, paused=True, changed=bool(changed))


async def resume_job(pool: asyncpg.Pool, after: AfterCommit, user: User, dag: str, job: str) -> PauseAnswer:
    async with pool.acquire() as connection, connection.transaction():
        # No delivery is being accepted meanwhile: one that was held by a pause that ends here would be held for ever.
        await connection.execute(queries("dags")["lock_activation"], user.org_id)
        found = await _find_job(connection, user.org_id, dag, job)
        changed = await connection.fetchval(queries("sources")["end_pause"], user.org_id, found.job_id)
        if found.kind == "webhook":
            await _release_deliveries(connection, found)
        crash_point("resume_job.before_commit")
    crash_point("resume_job.after_commit")
    for signal in (after.sources, after.outbox, after.flow):
        signal.notify()
    return PauseAnswer(dag=dag, job=job, paused=False, changed=bool(changed))


async def find_source(database: Queryable, org_id: UUID, dag: str, job: str) -> FoundJob:
    """A source of the active version."""
    source, where = await _find_job(database, org_id, dag, job), f"{dag}.{job}"
    if source.kind is None:
        raise Conflict(f"{where} is not a source", where=where, hint="it reacts to its inputs: fire what is upstream")
    return source


async def _find_job(database: Queryable, org_id: UUID, dag: str, job: str) -> FoundJob:
    where = f"{dag}.{job}"
    found = await find_row(database, queries("sources")["find_job"], FoundJob, org_id, dag, job)
    if found is not None and found.active is None:
        raise Conflict(f"DAG {dag!r} is not active", where=where, hint="activate it first")
    if found is None or found.job_id is None:
        raise NotFound(f"there is no job {where}", where=where, hint="`trace dag show` lists the jobs")
    return found


async def _release_deliveries(connection: Connection, source: FoundJob) -> None:
    """What was delivered while it was paused fires, in its order."""
    sql, works = queries("hooks")["release_held"], makes_task(source.operator or "")
    while await connection.fetchval(sql, source.job_id, works, RELEASED_AT_ONCE):
        crash_point("resume_job.released")
