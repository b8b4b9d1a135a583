"""Lists and shows the users of an organisation."""

from __future__ import annotations

from uuid import UUID

from tracelake.errors import NotFound
from tracelake.store.queries import Queryable, queries
from tracelake.wire.user.identity import UserList, UserRow, UsersQuery


async def list_users(database: Queryable, org_id: UUID, query: UsersQuery) -> UserList:
    records = await database.fetch(queries("users")["list_users"], org_id, None, query.subject)
    return UserList(users=[UserRow(**record) for record in records])


async def show_user(database: Queryable, org_id: UUID, user_id: UUID) -> UserRow:
    record = await database.fetchrow(queries("users")["list_users"], org_id, user_id, None)
    if record is None:
        raise NotFound(f"there is no user {user_id}", where="user in the path", hint="`trace user list` lists them")
    return UserRow(**record)
