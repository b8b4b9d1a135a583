"""Tokens of services: list, create, revoke. A token is random, shown once, and stored as hashes."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.signal import Changed
from tracelake.domain.access.service_tokens import new_service_token, token_hashes
from tracelake.domain.text.suggest import closest
from tracelake.errors import Conflict, InvalidRequest, NotFound
from tracelake.settings import RuntimeSettings
from tracelake.store.queries import Queryable, queries
from tracelake.wire.service.calls import CLAIMING
from tracelake.wire.user.identity import (
    ServiceTokenList,
    ServiceTokenMade,
    ServiceTokenRequest,
    ServiceTokenRevoked,
    ServiceTokenRow,
)


async def list_service_tokens(database: Queryable) -> ServiceTokenList:
    return ServiceTokenList(tokens=await _rows(database))


async def create_service_token(
    pool: asyncpg.Pool, changed: Changed, runtimes: Mapping[str, RuntimeSettings], request: ServiceTokenRequest
) -> ServiceTokenMade:
    _check_runtimes(request, runtimes)
    sql, token = queries("service_tokens"), new_service_token()
    hashes = token_hashes(token)
    named = request.service, request.name
    await pool.execute(sql["revoke_expired"], *named)
    values = request.runtimes or None, request.days, list(hashes), list(hashes.values())
    created = await pool.fetchval(sql["create_token"], *named, *values)
    if created is None:
        message = f"the service {request.service} has a token {request.name!r} already"
        raise Conflict(message, where="/name", hint="revoke it, or choose another name")
    changed.notify()
    (row,) = await _rows(pool, created)
    return ServiceTokenMade(**msgspec.structs.asdict(row), token=token)


async def revoke_service_token(pool: asyncpg.Pool, changed: Changed, token_id: UUID) -> ServiceTokenRevoked:
    found = await pool.fetchrow(queries("service_tokens")["revoke_token"], token_id)
    if found is None:
        hint = "`trace service-token list` lists them"
        raise NotFound(f"there is no service token {token_id}, or it is revoked", where="token in the path", hint=hint)
    changed.notify()
    return ServiceTokenRevoked(id=token_id, **found)


def _check_runtimes(request: ServiceTokenRequest, known: Mapping[str, RuntimeSettings]) -> None:
    if request.service not in CLAIMING:
        if request.runtimes:
            raise InvalidRequest(f"the service {request.service} claims no tasks", where="/runtimes")
        return
    if not request.runtimes:
        message = f"name the runtimes whose tasks this {request.service} may claim"
        raise InvalidRequest(message, where="/runtimes", hint=f"they are: {', '.join(sorted(known))}")
    for name in request.runtimes:
        if name not in known:
            raise InvalidRequest(f"no runtime named {name!r}", where="/runtimes", hint=closest(name, known))


async def _rows(database: Queryable, token_id: UUID | None = None) -> list[ServiceTokenRow]:
    records = await database.fetch(queries("service_tokens")["list_tokens"], token_id)
    return [ServiceTokenRow(**record) for record in records]
