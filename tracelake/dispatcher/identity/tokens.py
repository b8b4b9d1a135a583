"""Personal access tokens of a user: list, create, revoke. A token is random, shown once, and stored as a hash."""

from __future__ import annotations

import secrets

import asyncpg
import msgspec

from tracelake.domain.access.service_tokens import hash_token
from tracelake.domain.access.subjects import ROLES, USER_TOKEN
from tracelake.errors import Conflict, Forbidden, InvalidRequest, NotFound
from tracelake.store.identity import User
from tracelake.store.queries import Queryable, queries
from tracelake.wire.user.identity import TokenList, TokenMade, TokenRequest, TokenRevoked, TokenRow


async def list_tokens(database: Queryable, user: User) -> TokenList:
    return TokenList(tokens=await _rows(database, user))


async def create_token(pool: asyncpg.Pool, user: User, request: TokenRequest) -> TokenMade:
    _check(user, request)
    sql, token = queries("user_tokens"), f"{USER_TOKEN}{secrets.token_urlsafe(32)}"
    values = request.name, hash_token(token), request.role, request.days
    await pool.execute(sql["revoke_expired"], user.id, request.name)
    created = await pool.fetchval(sql["create_token"], user.org_id, user.id, *values)
    if created is None:
        raise Conflict(
            f"you have a token {request.name!r} already", where="/name", hint="revoke it, or choose another name"
        )
    (row,) = await _rows(pool, user, request.name)
    return TokenMade(**msgspec.structs.asdict(row), token=token)


async def revoke_token(pool: asyncpg.Pool, user: User, name: str) -> TokenRevoked:
    if await pool.fetchval(queries("user_tokens")["revoke_token"], user.id, name) is None:
        raise NotFound(f"you have no token {name!r}", where="token in the path", hint="`trace token list` lists yours")
    return TokenRevoked(name=name)


def _check(user: User, request: TokenRequest) -> None:
    if user.token_id is not None:
        # Otherwise it could prolong itself for ever.
        raise Forbidden("a personal access token creates no other", hint="use a token of the identity provider")
    if ROLES.index(request.role) > ROLES.index(user.role):
        raise InvalidRequest(f"a {user.role} cannot have a token for a {request.role}", where="/role")


async def _rows(database: Queryable, user: User, name: str | None = None) -> list[TokenRow]:
    records = await database.fetch(queries("user_tokens")["list_tokens"], user.id, name)
    return [TokenRow(**record) for record in records]
