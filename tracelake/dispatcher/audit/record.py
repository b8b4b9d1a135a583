"""Records a call of a user in the audit: an entry before the call is made, and its outcome after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.errors import BadInput, Forbidden, Refused, TraceError
from tracelake.store.queries import queries


@dataclass(frozen=True)
class CallEntry:
    """Who calls what, about which object, from where."""

    user_id: UUID
    action: str
    object: str
    origin: str


@asynccontextmanager
async def recorded(pool: asyncpg.Pool, entry: CallEntry, *, reads: bool) -> AsyncIterator[None]:
    """Of a call that only reads, a refusal for the user's role is recorded, and nothing else.

    A process that ends within the block leaves an entry without an outcome: the call may have been done.
    """
    begun = None if reads else await _begin(pool, entry)
    try:
        yield
    except TraceError as error:
        if not reads or isinstance(error, Forbidden):
            outcome = "refused" if isinstance(error, BadInput | Refused) else "failed"
            await _end(pool, begun or await _begin(pool, entry), outcome, error.code)
        raise
    except Exception as error:
        if begun is not None:
            await _end(pool, begun, "failed", type(error).__name__)
        raise
    if begun is not None:
        await _end(pool, begun, "done", None)


async def _begin(pool: asyncpg.Pool, entry: CallEntry) -> UUID:
    sql = queries("audit")["begin_entry"]
    made: UUID = await pool.fetchval(sql, entry.user_id, entry.action, entry.object, entry.origin)
    return made


async def _end(pool: asyncpg.Pool, entry: UUID, outcome: str, code: str | None) -> None:
    await pool.execute(queries("audit")["end_entry"], entry, outcome, code)
