"""Finds users by the subject of their token."""

from __future__ import annotations

import hmac
from uuid import UUID

import asyncpg

from tracelake.domain.access.subjects import Role, token_named
from tracelake.errors import InvitationExpired
from tracelake.store.queries import Row, find_row, queries


class User(Row, frozen=True):
    id: UUID
    org_id: UUID
    org_slug: str
    email: str | None
    role: Role
    platform_admin: bool = False
    """May also create organisations."""
    token_id: UUID | None = None
    """The personal access token that acts for the user; `role` is no more than the token's."""

    @property
    def reads_as(self) -> tuple[UUID, UUID, str]:
        """What decides which datasets exist to the user: the arguments of `datasets_seen` in Postgres."""
        return self.org_id, self.id, self.role


class UserToken(Row, frozen=True):
    id: UUID
    token_hash: bytes


async def find_user(pool: asyncpg.Pool, named: str) -> User | None:
    """By the subject of a verified token, or by the id of a personal access token (`token_name`).

    Raises InvitationExpired for a subject that was invited and did not call in time.
    """
    token = token_named(named)
    if token is not None:
        return await find_row(pool, queries("identity")["find_user_of_token"], User, token)
    return await _by_subject(pool, named) or await _invited(pool, named)


async def _by_subject(pool: asyncpg.Pool, subject: str) -> User | None:
    return await find_row(pool, queries("identity")["find_user"], User, subject)


async def _invited(pool: asyncpg.Pool, subject: str) -> User | None:
    """The first call of an invited user accepts the invitation."""
    if await pool.fetchval(queries("identity")["accept_invitation"], subject) is False:
        raise InvitationExpired(
            "the invitation of this user has expired",
            hint="ask an admin of your organisation to invite you again: `trace user add`",
        )
    return await _by_subject(pool, subject)  # also if another call has accepted it meanwhile


async def find_user_token(pool: asyncpg.Pool, token_hash: bytes) -> UUID | None:
    """The id of a personal access token that holds; it is marked as used."""
    sql = queries("user_tokens")
    found = await find_row(pool, sql["find_token"], UserToken, token_hash)
    if found is None or not hmac.compare_digest(found.token_hash, token_hash):
        return None
    await pool.execute(sql["mark_used"], found.id)
    return found.id
