"""What has become of a manual trigger: its tasks by state and, on request, those of everything downstream."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import msgspec

from tracelake.errors import NotFound
from tracelake.store.queries import queries
from tracelake.wire.user.dags import TriggerProgress

SHOWN_FAILURES = 20


async def trigger_progress(pool: asyncpg.Pool, org_id: UUID, request_id: UUID, *, downstream: bool) -> TriggerProgress:
    arguments = org_id, request_id, downstream, SHOWN_FAILURES
    found = await pool.fetchval(queries("triggers")["trigger_progress"], *arguments)
    if found is None:
        raise NotFound(f"there is no trigger {request_id}", where=str(request_id), hint="its id is in the answer to it")
    return msgspec.json.decode(found, type=TriggerProgress)
