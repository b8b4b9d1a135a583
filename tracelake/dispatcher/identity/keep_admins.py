"""Refuses to take the role of admin from those who must keep it."""

from __future__ import annotations

from uuid import UUID

from tracelake.errors import Conflict
from tracelake.store.queries import Connection, queries
from tracelake.wire.user.identity import UserRow


async def keep_admins(connection: Connection, org_id: UUID, user: UserRow) -> None:
    """To be called in the transaction of `administer`, before the user is removed or demoted."""
    if user.role != "admin":
        return
    if user.platform_admin:
        raise Conflict("a platform admin cannot be removed or demoted: nobody else creates organisations")
    if not await connection.fetchval(queries("users")["has_other_admin"], org_id, user.id):
        raise Conflict(
            f"{user.subject} is the last admin of the organisation",
            hint="make another user an admin first: `trace user set-role SUBJECT admin`",
        )
