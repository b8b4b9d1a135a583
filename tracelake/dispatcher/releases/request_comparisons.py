"""Requests the comparisons of a release that have not been made as its datasets are now."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.releases.show import find_release, show_release
from tracelake.dispatcher.signal import AfterCommit
from tracelake.errors import Conflict
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user.releases import ReleaseDetail


async def request_comparisons(pool: asyncpg.Pool, after: AfterCommit, user: User, release_id: UUID) -> ReleaseDetail:
    """One that serves, or did, keeps what was found before."""
    release = await find_release(pool, user.org_id, release_id)
    if release.state in {"Abandoned", "Retired"}:
        raise Conflict(
            f"this release is {release.state}: what it has built is removed, or will be",
            where=str(release_id),
            hint="deploy its files again: `trace deploy FILE...`",
        )
    if release.state in {"Building", "Ready"}:
        await pool.execute(queries("comparisons")["request_comparisons"], release_id)
        after.comparisons.notify()
    return await show_release(pool, user, release_id)
