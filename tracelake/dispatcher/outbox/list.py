"""A page of an organisation's entries that are pending or were given up, the newest first."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.store.queries import queries
from tracelake.wire.user.outbox import OutboxList, OutboxQuery, OutboxRow


async def list_outbox(pool: asyncpg.Pool, org_id: UUID, asked: OutboxQuery) -> OutboxList:
    sql = queries("user_outbox")["list_pending"]
    found = await pool.fetch(sql, org_id, asked.status, asked.before, asked.limit + 1)
    rows = [OutboxRow(**dict(row)) for row in found[: asked.limit]]
    return OutboxList(rows=rows, next=rows[-1].id if len(found) > asked.limit else None)
