"""Adds a user to the organisation of the admin who asks for it."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.identity.administer import administer
from tracelake.dispatcher.identity.show_users import show_user
from tracelake.domain.access.subjects import Role, compare_key, why_no_email, why_no_subject
from tracelake.errors import Conflict, InvalidRequest
from tracelake.store.identity import User
from tracelake.store.queries import Connection, queries
from tracelake.wire.user.identity import UserRequest, UserRow


async def add_user(pool: asyncpg.Pool, admin: User, request: UserRequest) -> UserRow:
    check_user(request.subject, "/subject", request.email)
    async with administer(pool, admin) as connection:
        added = await insert_user(
            connection, admin.org_id, request.subject, request.email, request.role, days=request.days
        )
        return await show_user(connection, admin.org_id, added)


def check_user(subject: str, where: str, email: str | None) -> None:
    if reason := why_no_subject(subject):
        raise InvalidRequest(f"this cannot be the subject of a user: {reason}", where=where)
    if email is not None and (reason := why_no_email(email)):
        raise InvalidRequest(f"this is not an e-mail address: {reason}", where="/email")


async def insert_user(
    connection: Connection,
    org_id: UUID,
    subject: str,
    email: str | None,
    role: Role,
    *,
    days: int | None = None,
    where: str = "/subject",
) -> UUID:
    """The id of the new user. Whether the subject that is taken is of another organisation is not said."""
    await connection.execute(queries("users")["remove_expired"], compare_key(subject))
    values = org_id, subject, compare_key(subject), email, role, days
    added: UUID | None = await connection.fetchval(queries("users")["add_user"], *values)
    if added is None:
        raise Conflict(
            "this subject, or one that differs only in case or in how Unicode writes it, is a user already",
            where=where,
            hint="a subject is a user of one organisation; `trace user list` lists those of yours",
        )
    return added
