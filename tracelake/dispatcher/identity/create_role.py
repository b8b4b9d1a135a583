"""Creates a role of an organisation."""

from __future__ import annotations

from collections.abc import Iterable

import asyncpg

from tracelake.dispatcher.identity.administer import administer
from tracelake.dispatcher.identity.show_roles import list_roles, show_role
from tracelake.domain.access.subjects import compare_key, why_no_name
from tracelake.errors import Conflict, InvalidRequest
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user.identity import RoleRequest, RoleRow


async def create_role(pool: asyncpg.Pool, admin: User, request: RoleRequest) -> RoleRow:
    name = request.role if request.name is None else request.name
    async with administer(pool, admin) as connection:
        known = (await list_roles(connection, admin.org_id)).roles
        if request.role in [role.role for role in known]:
            raise Conflict(f"there is a role {request.role!r} already", where="/role")
        check_name(name, [role.name for role in known])
        await connection.execute(queries("org_roles")["create_role"], admin.org_id, request.role, name)
        return await show_role(connection, admin.org_id, request.role)


def check_name(name: str, known: Iterable[str]) -> None:
    """Refuses a name that cannot be shown, or that people would take for another's."""
    if reason := why_no_name(name):
        raise InvalidRequest(f"this cannot be a name: {reason}", where="/name")
    if compare_key(name) in map(compare_key, known):
        raise Conflict(
            f"the name {name!r}, or one that differs only in case or in how Unicode writes it, is taken",
            where="/name",
        )
