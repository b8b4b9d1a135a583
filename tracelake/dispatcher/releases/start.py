"""Starts a release: inserts the versions of a change, and has their jobs run beside those of the active versions.

One transaction. Activations of the organisation wait for it, so that the versions it was planned with are the active
ones when it is stored.
"""

from __future__ import annotations

from uuid import UUID, uuid4

import asyncpg

from tracelake.dispatcher.dags.deploy import Runtimes, insert_version
from tracelake.dispatcher.releases.compare import insert_comparisons
from tracelake.dispatcher.releases.plan import Planned, plan_change
from tracelake.dispatcher.releases.resolve import ActiveDag, Change
from tracelake.dispatcher.releases.show import find_release
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.retire import retire_sources
from tracelake.domain.ids import OrgId
from tracelake.errors import Conflict
from tracelake.runtime.crash_points import crash_point
from tracelake.store.identity import User
from tracelake.store.queries import Connection, fetch_rows, queries
from tracelake.wire.user.releases import ReleaseAnswer, ReleaseRequest

TRIES = 5


async def start_release(
    pool: asyncpg.Pool, after: AfterCommit, user: User, request: ReleaseRequest, *, runtimes: Runtimes, bucket: str
) -> ReleaseAnswer:
    for _ in range(TRIES):
        planned = await plan_change(pool, user.org_id, request.dags, runtimes=runtimes)
        if request.plan is not None and request.plan != planned.plan.hash:
            raise Conflict(
                "the plan has changed since: other versions became active, or the files are others",
                where="/plan",
                hint="`trace plan` again, and deploy with the hash that it prints",
            )
        if not planned.plan.changes:
            return ReleaseAnswer(plan=planned.plan, release=None)
        release_id = await _store(pool, user, request, planned, bucket)
        if release_id is not None:
            crash_point("start_release.after_commit")
            for signal in (after.catch_up, after.releases, after.sources, after.stops):
                signal.notify()
            release = await find_release(pool, user.org_id, release_id)
            return ReleaseAnswer(plan=planned.plan, release=release)
    raise Conflict("other DAGs are being activated", where="/dags", hint="try again")


async def _store(pool: asyncpg.Pool, user: User, request: ReleaseRequest, planned: Planned, bucket: str) -> UUID | None:
    """None: another version became active since the change was planned."""
    org, release_id = OrgId(user.org_id), uuid4()
    async with pool.acquire() as connection, connection.transaction():
        sql = queries("releases")
        await connection.execute(queries("dags")["lock_activation"], org)
        if not await _is_current(connection, planned.change):
            return None
        same: UUID | None = await connection.fetchval(sql["find_same"], org, planned.plan.hash, request.when_ready)
        if same is not None:
            return same
        members = planned.change.changed
        for member in members:
            await insert_version(connection, org, user.id, member.new, bucket)
        names = [member.new.dag.name for member in members]
        await connection.execute(sql["replace_building"], org, names, release_id)
        stored = release_id, org, planned.plan.hash, request.when_ready, user.id
        await connection.execute(sql["insert_release"], *stored)
        await connection.execute(sql["insert_members"], release_id, org, names, [member.version for member in members])
        await insert_comparisons(connection, release_id, org, members)
        await connection.execute(sql["request_build"], release_id)
        for name in names:  # those of a release that was replaced
            await retire_sources(connection, org, name)
        await connection.execute(queries("sources")["insert_built"], release_id)
        crash_point("start_release.before_commit")
    return release_id


async def _is_current(connection: Connection, change: Change) -> bool:
    rows = await fetch_rows(connection, queries("releases")["list_active_versions"], ActiveDag, change.org)
    active = {row.dag_name: row.id for row in rows}
    return all(
        active.get(member.new.dag.name) == (None if member.former is None else member.former.id)
        for member in change.members
    )
