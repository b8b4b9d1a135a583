"""Lists deliveries of an organisation, and retries one."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.delivery.work_items import CHANNEL
from tracelake.errors import Conflict, NotFound
from tracelake.store.queries import queries
from tracelake.wire.alert_messages import DeliveryList, DeliveryQuery, DeliveryRetried, DeliveryRow


async def list_deliveries(pool: asyncpg.Pool, org_id: UUID, query: DeliveryQuery) -> DeliveryList:
    found = await pool.fetch(
        queries("deliveries")["list_deliveries"],
        org_id,
        query.status,
        query.alert,
        query.channel,
        query.before,
        query.limit + 1,
    )
    rows = [DeliveryRow(**dict(row)) for row in found[: query.limit]]
    return DeliveryList(deliveries=rows, next=rows[-1].id if len(found) > query.limit else None)


async def retry_delivery(pool: asyncpg.Pool, org_id: UUID, delivery: UUID) -> DeliveryRetried:
    """Whatever ended it: it is sent though it is old, with all its attempts again."""
    sql = queries("deliveries")
    if await pool.fetchval(sql["retry"], org_id, delivery) is None:
        status = await pool.fetchval(sql["status_of"], org_id, delivery)
        if status is None:
            raise NotFound("no such delivery", where=str(delivery))
        raise Conflict(f"the delivery is {status}: only one that failed or was too old is sent again")
    await pool.execute(sql["wake"], CHANNEL)
    return DeliveryRetried(id=delivery, status="Pending")
