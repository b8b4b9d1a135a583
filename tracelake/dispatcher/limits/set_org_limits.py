"""Sets limits of an organisation. For platform admins; work that waits goes on at once where a limit is raised."""

from __future__ import annotations

import asyncpg

from tracelake.dispatcher.limits.measure_storage import measure_storage
from tracelake.dispatcher.limits.show_org_limits import show_org_limits
from tracelake.dispatcher.signal import AfterCommit
from tracelake.domain.flow.org_limits import LIMIT_NAMES, LIMITS, MOST
from tracelake.domain.text.suggest import closest
from tracelake.errors import InvalidRequest, NotFound
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user.limits import OrgLimits, OrgLimitsChange


async def set_org_limits(
    pool: asyncpg.Pool, after: AfterCommit, admin: User, org: str, change: OrgLimitsChange
) -> OrgLimits:
    numbers = {name: _number(name, value) for name, value in change.limits.items()}
    given = {name: number for name, number in numbers.items() if change.limits[name] != "default"}
    sql = queries("org_limits")
    async with pool.acquire() as connection, connection.transaction():
        org_id = await connection.fetchval(sql["find_org"], org)
        if org_id is None:
            hint = "`trace org list` lists them"
            raise NotFound(f"there is no organisation {org!r}", where="org in the path", hint=hint)
        await connection.execute(sql["set_limits"], org_id, list(given), list(given.values()), admin.id)
        await connection.execute(sql["unset_limits"], org_id, list(numbers.keys() - given.keys()))
        await connection.execute(sql["share_limits"], org_id)
        shown = await show_org_limits(connection, org)
    await measure_storage(pool)
    after.outbox.notify()
    return shown


def _number(name: str, value: int | str) -> int | None:
    """None: no limit, or the default."""
    if name not in LIMITS:
        raise InvalidRequest(f"there is no limit {name[:80]!r}", where="/limits", hint=closest(name, LIMIT_NAMES))
    if value in ("none", "default"):
        return None
    if not isinstance(value, int) or not 1 <= value <= MOST:
        raise InvalidRequest(
            f"{name}: {value!r:.40} is neither a number from 1 to {MOST}, nor none, nor default",
            where=f"/limits/{name}",
            hint="none: no limit; default: that of the settings; `trace job pause` pauses a job",
        )
    return value
