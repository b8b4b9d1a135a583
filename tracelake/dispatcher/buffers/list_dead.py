"""A page of an organisation's batches that the sink refused, the newest first, each with line and reason."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.store.queries import queries
from tracelake.wire.user_messages import DeadBatchList, DeadBatchQuery, DeadBatchRow


async def list_dead_batches(pool: asyncpg.Pool, org_id: UUID, asked: DeadBatchQuery) -> DeadBatchList:
    sql = queries("buffered")
    found = await pool.fetch(sql["list_dead"], org_id, asked.before, asked.limit + 1, asked.dataset)
    rows = [DeadBatchRow(**dict(row)) for row in found[: asked.limit]]
    total = await pool.fetchval(sql["count_dead"], org_id, asked.dataset)
    return DeadBatchList(batches=rows, next=rows[-1].publish_id if len(found) > asked.limit else None, total=total)
