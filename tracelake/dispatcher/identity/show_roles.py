"""Lists and shows the roles of an organisation."""

from __future__ import annotations

from uuid import UUID

from tracelake.domain.text.suggest import closest
from tracelake.errors import NotFound
from tracelake.store.queries import Queryable, queries
from tracelake.wire.user.identity import RoleList, RoleRow


async def list_roles(database: Queryable, org_id: UUID) -> RoleList:
    records = await database.fetch(queries("org_roles")["list_roles"], org_id, None)
    return RoleList(roles=[RoleRow(**record) for record in records])


async def show_role(database: Queryable, org_id: UUID, role: str) -> RoleRow:
    record = await database.fetchrow(queries("org_roles")["list_roles"], org_id, role)
    if record is None:
        known = [row.role for row in (await list_roles(database, org_id)).roles]
        raise NotFound(f"there is no role {role!r}", where="role in the path", hint=closest(role, known))
    return RoleRow(**record)
