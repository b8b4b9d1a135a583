"""Changes the role of a user. It counts from the user's next call on: the row is read for each."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.identity.administer import administer
from tracelake.dispatcher.identity.keep_admins import keep_admins
from tracelake.dispatcher.identity.show_users import show_user
from tracelake.domain.access.subjects import Role
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user.identity import UserRow


async def set_user_role(pool: asyncpg.Pool, admin: User, user_id: UUID, role: Role) -> UserRow:
    async with administer(pool, admin) as connection:
        user = await show_user(connection, admin.org_id, user_id)
        if role != "admin":
            await keep_admins(connection, admin.org_id, user)
        await connection.execute(queries("users")["set_role"], admin.org_id, user_id, role)
        return await show_user(connection, admin.org_id, user_id)
