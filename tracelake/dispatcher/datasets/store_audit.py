"""Questions that the Query service was asked, stored once each however often it tells of them."""

from __future__ import annotations

import msgspec

from tracelake.dispatcher.control import Control
from tracelake.store.queries import queries
from tracelake.wire.query_messages import AuditAnswer, AuditRequest


async def store_audit(control: Control, request: AuditRequest) -> AuditAnswer:
    rows = msgspec.to_builtins(request.rows)
    return AuditAnswer(stored=await control.pool.fetchval(queries("relations")["store_audit"], rows))
