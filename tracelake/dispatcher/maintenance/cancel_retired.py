"""Cancels tasks that were created for a DAG version just as another one was activated, or the DAG was deactivated."""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg

from tracelake.dispatcher.dags.switch import RetiredTasks
from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.dispatcher.signal import AfterCommit
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import fetch_row, queries


@dataclass(frozen=True)
class CancelRetired(Periodic):
    pool: asyncpg.Pool
    after: AfterCommit

    async def once(self) -> int:
        await cancel_retired_tasks(self.pool, self.after)
        crash_point("cancel_retired.tasks_canceled")
        return 0  # nothing follows at once: the next pass is soon enough


async def cancel_retired_tasks(pool: asyncpg.Pool, after: AfterCommit) -> int:
    tasks = await fetch_row(pool, queries("dags")["cancel_retired_tasks"], RetiredTasks, None, None)
    inactive: int = await pool.fetchval(queries("dags")["cancel_inactive_tasks"], None, None)
    if tasks.made_again:
        after.outbox.notify()
    if tasks.canceled or inactive:
        after.stops.notify()
    return tasks.canceled + inactive
