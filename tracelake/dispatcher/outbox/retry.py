"""A user retries outbox entries that were given up."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import Signal
from tracelake.errors import Unavailable
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import fetch_column, queries
from tracelake.wire.user.outbox import OutboxRetryAnswer


async def retry_outbox(
    pool: asyncpg.Pool, outbox: Signal, org_id: UUID, ids: Sequence[int] | None
) -> OutboxRetryAnswer:
    """All of them if no ids are given. Entries that were not given up, or of other organisations, are skipped."""
    crash_point("retry_outbox.before_commit")
    try:
        retried = await fetch_column(pool, queries("user_outbox")["retry_given_up"], org_id, ids)
    except asyncpg.UniqueViolationError:  # an entry of the same meaning was written at this moment
        raise Unavailable("one of the entries was just written anew", hint="try again") from None
    crash_point("retry_outbox.after_commit")
    outbox.notify()
    return OutboxRetryAnswer(retried=sorted(retried))
