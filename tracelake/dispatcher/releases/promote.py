"""Promotes a release: all its versions become active in one transaction. And goes back: to those that were before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import asyncpg

from tracelake.dispatcher.dags.deactivate import withdraw
from tracelake.dispatcher.dags.deploy import Runtimes
from tracelake.dispatcher.dags.switch import Activated, ParsedVersions, after_switch, parse_versions, switch
from tracelake.dispatcher.releases.compare import has_passed, overruled
from tracelake.dispatcher.releases.replay_fires import replay_before_switch
from tracelake.dispatcher.releases.show import StoredMember, find_release
from tracelake.dispatcher.signal import AfterCommit
from tracelake.domain.ids import OrgId
from tracelake.errors import Conflict
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Connection, fetch_rows, queries
from tracelake.wire.user.releases import SwitchAnswer

TRIES = 5
"""How often published datasets may change while the versions are parsed, before it is refused."""


async def promote_release(
    pool: asyncpg.Pool, after: AfterCommit, org_id: UUID, release_id: UUID, *, runtimes: Runtimes, force: bool = False
) -> SwitchAnswer:
    """Where a dataset has limits, it is compared first: then the answer is the release as it is, promoted later."""
    release = await find_release(pool, org_id, release_id)
    if release.state == "Serving":  # the answer to the first request was lost
        return await _answer(pool, org_id, release_id, [])
    _require_ready(release.state, release_id, force=force)
    if not force and not await has_passed(pool, after, release_id):
        after.releases.notify()
        return await _answer(pool, org_id, release_id, [])
    members = await _members(pool, release_id)
    versions = {member.dag_name: member.dag_version_id for member in members}
    for _ in range(TRIES):
        parsed = await parse_versions(pool, runtimes, org_id, versions)
        try:
            done = await _promote(pool, OrgId(org_id), release_id, parsed, force=force)
        except asyncpg.DeadlockDetectedError:  # with claims of the tasks that are canceled here
            continue
        if done is not None:
            crash_point("promote_release.after_commit")
            after_switch(after, done)
            return await _answer(pool, org_id, release_id, done)
    raise Conflict("other DAGs are being activated", where=str(release_id), hint="try again")


async def rollback_release(
    pool: asyncpg.Pool, after: AfterCommit, org_id: UUID, release_id: UUID, *, runtimes: Runtimes
) -> SwitchAnswer:
    """The whole group goes back: its datasets were built together."""
    release = await find_release(pool, org_id, release_id)
    if release.state == "Standby" and not await _serves(pool, release_id):
        return await _answer(pool, org_id, release_id, [])
    _require_serving(release.state, release_id)
    members = await _members(pool, release_id)
    versions = {member.dag_name: member.former_version_id for member in members if member.former_version_id}
    for _ in range(TRIES):
        parsed = await parse_versions(pool, runtimes, org_id, versions)
        try:
            done = await _rollback(pool, OrgId(org_id), release_id, parsed)
        except asyncpg.DeadlockDetectedError:
            continue
        if done is not None:
            crash_point("rollback_release.after_commit")
            after_switch(after, done)
            return await _answer(pool, org_id, release_id, done)
    raise Conflict("other DAGs are being activated", where=str(release_id), hint="try again")


async def _promote(
    pool: asyncpg.Pool, org: OrgId, release_id: UUID, parsed: ParsedVersions, *, force: bool
) -> list[Activated] | None:
    sql = queries("releases")
    async with pool.acquire() as connection, connection.transaction():
        state = await _lock(connection, org, release_id)
        _require_ready(state, release_id, force=force)
        await replay_before_switch(connection, release_id, back=False)
        done = await switch(connection, org, parsed, release=release_id)
        if done is None:
            return None
        message = await overruled(connection, release_id) if force else None
        await connection.execute(sql["mark_serving"], release_id, message)
        crash_point("promote_release.before_commit")
    return done


async def _rollback(pool: asyncpg.Pool, org: OrgId, release_id: UUID, parsed: ParsedVersions) -> list[Activated] | None:
    async with pool.acquire() as connection, connection.transaction():
        state = await _lock(connection, org, release_id)
        _require_serving(state, release_id)
        members = await _members(connection, release_id)
        _require_together(members, release_id)
        await replay_before_switch(connection, release_id, back=True)
        done = await switch(connection, org, parsed, release=release_id)
        if done is None:
            return None
        for member in members:
            if member.former_version_id is None:
                await withdraw(connection, org, member.dag_name)
        await connection.execute(queries("releases")["mark_standby"], release_id, org)
        crash_point("rollback_release.before_commit")
    return done


async def _lock(connection: Connection, org: OrgId, release_id: UUID) -> str:
    """After the lock that activations take too: they change releases that they overtake."""
    await connection.execute(queries("dags")["lock_activation"], org)
    return str(await connection.fetchval(queries("releases")["lock_release"], org, release_id))


async def _members(database: asyncpg.Pool | Connection, release_id: UUID) -> list[StoredMember]:
    return await fetch_rows(database, queries("releases")["list_members"], StoredMember, release_id)


async def _serves(pool: asyncpg.Pool, release_id: UUID) -> bool:
    return any(member.active == member.dag_version_id for member in await _members(pool, release_id))


def _require_ready(state: str, release_id: UUID, *, force: bool) -> None:
    if state == "Ready" or (state == "Building" and force):
        return
    hints = {
        "Building": f"`trace release show {release_id}` shows what is missing; `--force` promotes it as it is",
        "Standby": "deploy its files again: what it has built is reused",
    }
    raise Conflict(
        f"only a release that is ready can be promoted; this one is {state}",
        where=str(release_id),
        hint=hints.get(state, "deploy its files again"),
    )


def _require_serving(state: str, release_id: UUID) -> None:
    if state != "Serving":
        raise Conflict(
            f"only the release that serves can be rolled back; this one is {state}",
            where=str(release_id),
            hint="`trace release list` shows which one serves",
        )


def _require_together(members: Sequence[StoredMember], release_id: UUID) -> None:
    moved = [member.dag_name for member in members if member.active != member.dag_version_id]
    if moved:
        raise Conflict(
            f"another version of {', '.join(moved)} has become active since: the group is no longer together",
            where=str(release_id),
            hint="deploy the versions that you want together: `trace deploy FILE...`",
        )


async def _answer(pool: asyncpg.Pool, org_id: UUID, release_id: UUID, done: Sequence[Activated]) -> SwitchAnswer:
    members = await _members(pool, release_id)
    versions: Mapping[str, UUID] = {member.dag_name: member.active for member in members if member.active}
    return SwitchAnswer(
        release=await find_release(pool, org_id, release_id),
        versions=dict(versions),
        canceled_tasks=sum(activated.canceled_tasks for activated in done),
    )
