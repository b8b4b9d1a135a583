"""A person holds an always-on source, or lets it go on. A held one is told to stop, and stays stopped over deploys."""

from __future__ import annotations

from uuid import UUID

from tracelake.dispatcher.control import Control
from tracelake.errors import Conflict, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user_messages import PauseAnswer


async def pause_source(control: Control, user: User, dag: str, job: str) -> PauseAnswer:
    job_id = await _source(control, user.org_id, dag, job)
    crash_point("pause_source.before_commit")
    changed = await control.pool.fetchval(queries("sources")["pause"], user.org_id, job_id, user.id)
    crash_point("pause_source.after_commit")
    control.sources.notify()
    control.stops.notify()
    return PauseAnswer(dag=dag, job=job, paused=True, changed=bool(changed))


async def resume_source(control: Control, user: User, dag: str, job: str) -> PauseAnswer:
    job_id = await _source(control, user.org_id, dag, job)
    crash_point("resume_source.before_commit")
    changed = await control.pool.fetchval(queries("sources")["end_pause"], user.org_id, job_id)
    crash_point("resume_source.after_commit")
    control.sources.notify()
    return PauseAnswer(dag=dag, job=job, paused=False, changed=bool(changed))


async def _source(control: Control, org_id: UUID, dag: str, job: str) -> UUID:
    row = await control.pool.fetchrow(queries("sources")["find_job"], org_id, dag, job)
    if row is None or (row["active"] is not None and row["job_id"] is None):
        raise NotFound(f"there is no job {dag}.{job}", where=f"{dag}.{job}", hint="`trace dag show` lists the jobs")
    if row["kind"] != "always_on":
        active = row["active"] is not None
        reason = f"{dag}.{job} is not an always-on source" if active else f"DAG {dag!r} is not active"
        raise Conflict(reason, where=f"{dag}.{job}", hint=None if active else "activate it first")
    found: UUID = row["job_id"]
    return found
