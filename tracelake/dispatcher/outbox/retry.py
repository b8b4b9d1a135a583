"""A person asks for entries that were given up to be tried again."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.errors import Unavailable
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.user_outbox import OutboxRetryAnswer


async def retry_outbox(control: Control, org_id: UUID, ids: Sequence[int] | None) -> OutboxRetryAnswer:
    """All of them if no ids are given. An id that was not given up, or is another organisation's, is passed over."""
    crash_point("retry_outbox.before_commit")
    try:
        rows = await control.pool.fetch(queries("user_outbox")["retry_given_up"], org_id, ids)
    except asyncpg.UniqueViolationError:  # the same thing was promised anew at this very moment
        raise Unavailable("one of the entries was just made anew", hint="ask again") from None
    crash_point("retry_outbox.after_commit")
    control.outbox_signal.notify()
    return OutboxRetryAnswer(retried=sorted(row["id"] for row in rows))
