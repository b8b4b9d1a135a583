"""Records calls of users in the audit: those that the Dispatcher answers, and those of other services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.errors import Forbidden, NotFound
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.calls.user_calls import CALLS
from tracelake.wire.record_call import AuditBeginRequest, AuditEndRequest, CallOutcome, recorded_in


@dataclass(frozen=True)
class CallEntry:
    """Who calls what, about which object, from where."""

    user_id: UUID
    action: str
    object: str
    origin: str


@asynccontextmanager
async def recorded(pool: asyncpg.Pool, entry: CallEntry, *, reads: bool) -> AsyncIterator[None]:
    async with recorded_in(_Rows(pool, entry), reads=reads):
        yield


def origin_of(user: User, client: str) -> str:
    return f"{client} token {user.token_id}" if user.token_id else client


async def begin_for(pool: asyncpg.Pool, service: str, user: User, asked: AuditBeginRequest) -> UUID:
    """The entry of a call that another service answers: one of its own."""
    _require_own(service, asked.action)
    entry = CallEntry(user.id, asked.action, asked.object, origin_of(user, asked.client))
    return await _Rows(pool, entry).begin()


async def end_for(pool: asyncpg.Pool, service: str, user: User, asked: AuditEndRequest) -> None:
    _require_own(service, asked.action)
    ended = asked.entry, asked.outcome, asked.code, user.id, asked.action
    if await pool.fetchval(queries("audit")["end_entry_of"], *ended) is None:
        raise NotFound("no such entry of this user and call, or it has ended", where="/entry")


def _require_own(service: str, action: str) -> None:
    call = CALLS.get(action)
    if call is None or call.service != service:
        raise Forbidden(f"the service {service} does not answer this call", where="/action")


@dataclass(frozen=True)
class _Rows:
    pool: asyncpg.Pool
    entry: CallEntry

    async def begin(self) -> UUID:
        entry = self.entry
        sql = queries("audit")["begin_entry"]
        made: UUID = await self.pool.fetchval(sql, entry.user_id, entry.action, entry.object, entry.origin)
        return made

    async def end(self, entry: UUID, outcome: CallOutcome, code: str | None) -> None:
        await self.pool.execute(queries("audit")["end_entry"], entry, outcome, code)
