"""Creates an organisation with its first admin, both or none. For platform admins."""

from __future__ import annotations

import asyncpg

from tracelake.dispatcher.identity.add_user import check_user, insert_user
from tracelake.dispatcher.identity.create_role import check_name
from tracelake.dispatcher.identity.show_orgs import list_orgs, show_org
from tracelake.errors import Conflict
from tracelake.store.queries import queries
from tracelake.wire.user.identity import OrgRequest, OrgRow


async def create_org(pool: asyncpg.Pool, request: OrgRequest) -> OrgRow:
    name, sql = request.org if request.name is None else request.name, queries("orgs")
    check_user(request.admin, "/admin", request.email)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(sql["lock_orgs"])
        known = (await list_orgs(connection)).orgs
        if request.org in [org.org for org in known]:
            raise Conflict(f"there is an organisation {request.org!r} already", where="/org")
        check_name(name, [org.name for org in known])
        created = await connection.fetchval(sql["create_org"], name, request.org)
        await insert_user(connection, created, request.admin, request.email, "admin", where="/admin")
        return await show_org(connection, request.org)
