"""Questions that the Query service was asked, stored once each however often it tells of them."""

from __future__ import annotations

import msgspec

from trace_platform.dispatcher.control import Control
from trace_platform.query_contracts import AuditAnswer, AuditRequest
from trace_platform.store.queries import queries


async def store_audit(control: Control, request: AuditRequest) -> AuditAnswer:
    rows = msgspec.to_builtins(request.rows)
    return AuditAnswer(stored=await control.pool.fetchval(queries("relations")["store_audit"], rows))
