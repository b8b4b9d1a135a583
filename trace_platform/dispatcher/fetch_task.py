"""What a task is, for a worker that has not claimed it, or wants to know whether it still should."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from trace_platform.dispatcher.claim_task import payload
from trace_platform.dispatcher.control import Control
from trace_platform.errors import NotFound
from trace_platform.store.queries import queries


async def fetch_task(control: Control, task_id: UUID) -> dict[str, Any]:
    row = await control.pool.fetchrow(queries("claim")["fetch_task"], task_id)
    if row is None:
        raise NotFound("no such task", where="query task_id")
    job = await control.jobs.get(row["job_id"])
    return {"status": row["status"], **msgspec.to_builtins(payload(job, row, []))}
