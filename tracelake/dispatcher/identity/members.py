"""Which users have a role of the organisation: list, grant, revoke. Both take effect with the user's next call."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.identity.administer import administer
from tracelake.dispatcher.identity.show_roles import show_role
from tracelake.dispatcher.identity.show_users import show_user
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user.identity import MemberList, MemberRow, MembershipAnswer


async def list_role_members(pool: asyncpg.Pool, org_id: UUID, role: str) -> MemberList:
    found = await show_role(pool, org_id, role)
    records = await pool.fetch(queries("org_roles")["list_members"], org_id, role)
    return MemberList(role=found.role, members=[MemberRow(**record) for record in records])


async def grant_role(pool: asyncpg.Pool, admin: User, role: str, user_id: UUID) -> MembershipAnswer:
    return await _change(pool, admin, role, user_id, "grant_role")


async def revoke_role(pool: asyncpg.Pool, admin: User, role: str, user_id: UUID) -> MembershipAnswer:
    return await _change(pool, admin, role, user_id, "revoke_role")


async def _change(pool: asyncpg.Pool, admin: User, role: str, user_id: UUID, statement: str) -> MembershipAnswer:
    async with administer(pool, admin) as connection:
        await show_role(connection, admin.org_id, role)
        await show_user(connection, admin.org_id, user_id)
        changed = await connection.fetchval(queries("org_roles")[statement], admin.org_id, role, user_id)
    return MembershipAnswer(role=role, user=user_id, changed=changed is not None)
