"""Removes a user: all rights are gone with the next call, and what the user has made keeps its author."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.identity.administer import administer
from tracelake.dispatcher.identity.keep_admins import keep_admins
from tracelake.dispatcher.identity.show_users import show_user
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user.identity import UserRemoved


async def remove_user(pool: asyncpg.Pool, admin: User, user_id: UUID) -> UserRemoved:
    async with administer(pool, admin) as connection:
        user = await show_user(connection, admin.org_id, user_id)
        await keep_admins(connection, admin.org_id, user)
        await connection.execute(queries("users")["remove_user"], admin.org_id, user_id)
    return UserRemoved(id=user.id, subject=user.subject)
