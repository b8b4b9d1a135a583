"""Deletes a role of an organisation."""

from __future__ import annotations

import asyncpg

from tracelake.dispatcher.identity.administer import administer
from tracelake.dispatcher.identity.show_roles import show_role
from tracelake.errors import Conflict
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user.identity import RoleDeleted, RoleRow


async def delete_role(pool: asyncpg.Pool, admin: User, role: str, *, force: bool) -> RoleDeleted:
    async with administer(pool, admin) as connection:
        await connection.execute(queries("dags")["lock_activation"], admin.org_id)
        found = await show_role(connection, admin.org_id, role)
        if found.datasets and not force:
            raise _in_use(found)
        await connection.execute(queries("access")["forget_role"], admin.org_id, f"role:{role}")
        await connection.execute(queries("org_roles")["delete_role"], admin.org_id, role)
    return RoleDeleted(role=role, members=found.members, datasets=found.datasets)


def _in_use(role: RoleRow) -> Conflict:
    some, more = ", ".join(role.datasets[:5]), len(role.datasets) - 5
    shared = f"{some} and {more} more" if more > 0 else some
    return Conflict(
        f"role {role.role} is in the access of {shared}",
        where="role in the path",
        hint="with `force` it is deleted, and its members lose the access to them",
    )
