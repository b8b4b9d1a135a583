"""Lists backfills, and pauses, resumes and cancels them."""

from __future__ import annotations

from typing import Final, Literal
from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import Signal
from tracelake.errors import Conflict, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.user.backfills import BackfillBudget, BackfillList, BackfillRow

TASKS: Final = "the tasks of its budget were created"
HOURS: Final = "the hours of its budget are over"
REQUESTS: Final = "the requests of its budget were sent"
BYTES: Final = "the bytes of its budget were written"
FEW_REQUESTS: Final = "fewer requests of its budget are left than a task has sent"
FEW_BYTES: Final = "fewer bytes of its budget are left than a task has written"
BackfillChange = Literal["Paused", "Running", "Canceled"]
FROM: Final[dict[BackfillChange, tuple[str, ...]]] = {
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


async def change_backfill(
    pool: asyncpg.Pool,
    signal: Signal,
    org_id: UUID,
    backfill: UUID,
    to: BackfillChange,
    *,
    budget: BackfillBudget | None = None,
) -> BackfillRow:
    """Tasks that it has created stay as they are. `budget`: of one that is resumed, or runs."""
    current, given = await show_backfill(pool, org_id, backfill), budget or BackfillBudget()
    if current.status == to and given == BackfillBudget():
        return current
    if to == "Running":
        _refuse_used_up(current, given)
    values = given.tasks, given.hours, given.requests, given.bytes
    crash_point("change_backfill.before_commit")
    changed = await pool.fetchval(queries("backfills")["set_status"], org_id, backfill, to, list(FROM[to]), *values)
    crash_point("change_backfill.after_commit")
    signal.notify()
    after = await show_backfill(pool, org_id, backfill)
    if changed is None:
        raise Conflict(
            f"this backfill has ended ({after.ended_because})", where=str(backfill), hint="start another one"
        )
    return after


def _refuse_used_up(current: BackfillRow, given: BackfillBudget) -> None:
    """It would stop again at once."""
    budgets = (
        ("tasks", given.tasks or current.budget_tasks, current.created),
        ("requests", given.requests or current.budget_requests, current.used_requests or 0),
        ("bytes", given.bytes or current.budget_bytes, current.used_bytes or 0),
    )
    for name, limit, used in budgets:
        if limit is not None and used >= limit:
            raise Conflict(
                f"{used} {name} are used, and the budget is {limit}",
                where=f"/{name}",
                hint=f"`trace backfill resume ID --budget {name}=N`, with more than {used}",
            )
    if current.stopped_because == HOURS and given.hours is None:
        hint = "`trace backfill resume ID --budget hours=H`"
        raise Conflict(HOURS, where="/hours", hint=hint)
