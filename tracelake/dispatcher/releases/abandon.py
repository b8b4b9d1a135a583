"""Abandons a release that is being built or ready: its tasks end, and what it has built is removed after some days."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.dags.switch import RetiredTasks
from tracelake.dispatcher.releases.show import StoredMember, find_release
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.retire import retire_sources
from tracelake.domain.task import TaskState
from tracelake.errors import Conflict
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Connection, fetch_row, fetch_rows, queries
from tracelake.wire.user.releases import ReleaseRow

TRIES = 5
"""How often a claim of one of its tasks may come between."""


async def abandon_release(pool: asyncpg.Pool, after: AfterCommit, org_id: UUID, release_id: UUID) -> ReleaseRow:
    """One that was abandoned before stays so: the call may be a repeated one."""
    release = await find_release(pool, org_id, release_id)
    for _ in range(TRIES):
        if release.state == "Abandoned":
            return release
        try:
            canceled = await _abandon(pool, org_id, release_id)
        except asyncpg.DeadlockDetectedError:
            continue
        crash_point("abandon_release.after_commit")
        for signal in (after.leases, after.sources, after.stops):
            signal.notify()
        after.metrics.moved("any", TaskState.CANCELED, canceled)
        release = await find_release(pool, org_id, release_id)
    if release.state == "Abandoned":
        return release
    raise Conflict("its tasks are being claimed", where=str(release_id), hint="try again")


async def _abandon(pool: asyncpg.Pool, org_id: UUID, release_id: UUID) -> int:
    sql = queries("releases")
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(queries("dags")["lock_activation"], org_id)
        state = await connection.fetchval(sql["lock_release"], org_id, release_id)
        if state not in {"Building", "Ready"}:
            raise Conflict(
                f"only a release that is being built or ready can be abandoned; this one is {state}",
                where=str(release_id),
                hint="`trace release rollback` goes back from one that serves",
            )
        await connection.execute(sql["mark_abandoned"], release_id, "abandoned by a user")
        await connection.execute(sql["end_building"], release_id)
        canceled = await _cancel(connection, org_id, release_id)
        await connection.execute(sql["mark_left"], release_id)
        crash_point("abandon_release.before_commit")
    return canceled


async def _cancel(connection: Connection, org_id: UUID, release_id: UUID) -> int:
    canceled, sql = 0, queries("dags")
    members = await fetch_rows(connection, queries("releases")["list_members"], StoredMember, release_id)
    for member in members:
        if member.active is None:
            canceled += await connection.fetchval(sql["cancel_inactive_tasks"], org_id, member.dag_name)
        else:
            retired = await fetch_row(connection, sql["cancel_retired_tasks"], RetiredTasks, org_id, member.dag_name)
            canceled += retired.canceled
        await retire_sources(connection, org_id, member.dag_name)
    return canceled
