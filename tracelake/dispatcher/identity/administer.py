"""The transaction of an administrative verb."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tracelake.errors import Forbidden
from tracelake.store.identity import User
from tracelake.store.queries import Connection, queries


@asynccontextmanager
async def administer(pool: asyncpg.Pool, admin: User) -> AsyncIterator[Connection]:
    """One at a time within an organisation, by a user who is an admin still when it is their turn."""
    sql = queries("users")
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(sql["lock_org"], admin.org_id)
        if not await connection.fetchval(sql["is_admin"], admin.org_id, admin.id):
            raise Forbidden("you are no longer an admin", hint="ask an admin of your organisation for the role")
        yield connection
