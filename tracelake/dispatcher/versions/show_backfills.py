"""Lists backfills, and pauses, resumes and cancels them."""

from __future__ import annotations

from typing import Final, Literal
from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import Signal
from tracelake.errors import Conflict, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.user_backfills import BackfillList, BackfillRow

Change = Literal["Paused", "Running", "Canceled"]
FROM: Final[dict[Change, tuple[str, ...]]] = {
    "Paused": ("Running", "Paused"),
    "Running": ("Paused", "Running"),
    "Canceled": ("Running", "Paused", "Canceled"),
}
"""The states from which each can be reached. Where it is reached already, nothing changes."""


async def list_backfills(pool: asyncpg.Pool, org_id: UUID) -> BackfillList:
    rows = await pool.fetch(queries("backfills")["list_backfills"], org_id, None)
    return BackfillList(backfills=[BackfillRow(**dict(row)) for row in rows])


async def show_backfill(pool: asyncpg.Pool, org_id: UUID, backfill: UUID) -> BackfillRow:
    row = await pool.fetchrow(queries("backfills")["list_backfills"], org_id, backfill)
    if row is None:
        raise NotFound("no such backfill", where=str(backfill), hint="`trace backfill list` lists them")
    return BackfillRow(**dict(row))


async def change_backfill(pool: asyncpg.Pool, signal: Signal, org_id: UUID, backfill: UUID, to: Change) -> BackfillRow:
    """Tasks that it has created stay as they are."""
    current = await show_backfill(pool, org_id, backfill)
    if current.status == to:
        return current
    crash_point("change_backfill.before_commit")
    changed = await pool.fetchval(queries("backfills")["set_status"], org_id, backfill, to, list(FROM[to]))
    crash_point("change_backfill.after_commit")
    signal.notify()
    after = await show_backfill(pool, org_id, backfill)
    if changed is None:
        raise Conflict(
            f"this backfill has ended ({after.ended_because})", where=str(backfill), hint="start another one"
        )
    return after
