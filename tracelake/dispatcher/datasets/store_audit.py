"""Stores audit rows of the query service, each once however often it is sent."""

from __future__ import annotations

import asyncpg
import msgspec

from tracelake.store.queries import queries
from tracelake.wire.internal.queries import AuditAnswer, AuditRequest


async def store_audit(pool: asyncpg.Pool, request: AuditRequest) -> AuditAnswer:
    rows = msgspec.to_builtins(request.rows)
    return AuditAnswer(stored=await pool.fetchval(queries("relations")["store_audit"], rows))
