"""Looks at the progress of releases: one whose jobs have processed all that their inputs hold is ready.

Its tasks are created by catching up (`versions/catch_up.py`), but for those that process invalidations, which are
created here. Changed always-on sources run beside those of the active versions, and must have come as far. A release
that is to be promoted by itself is promoted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import asyncpg

from tracelake.dispatcher.dags.deploy import Runtimes
from tracelake.dispatcher.maintenance.loop import Work
from tracelake.dispatcher.releases.promote import promote_release
from tracelake.dispatcher.releases.replay_fires import replay_to_release
from tracelake.dispatcher.releases.show import count_units
from tracelake.dispatcher.signal import AfterCommit
from tracelake.domain.text.count_of import count_of
from tracelake.errors import TraceError
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Connection, Row, fetch_rows, find_row, queries

SHORTLY = timedelta(seconds=1)
LATER = timedelta(seconds=5)
"""While something failed, which only a user can change."""
RECENTLY = timedelta(seconds=10)
"""A source of a release may be so far behind that of the active version: both follow what grows."""


class OpenRelease(Row, frozen=True):
    id: UUID
    org_id: UUID
    state: str
    when_ready: bool
    open_tasks: int
    was_compared: bool


class SourceBehind(Row, frozen=True):
    """An always-on source of a release that has not come as far as that of the active version."""

    dag_name: str
    job_name: str
    reached: int | None
    expected: int

    @property
    def message(self) -> str:
        reached = "nothing yet" if self.reached is None else self.reached
        return f"source {self.dag_name}.{self.job_name} has reached {reached} of {self.expected}"


@dataclass(frozen=True)
class RunReleases(Work):
    pool: asyncpg.Pool
    after: AfterCommit
    runtimes: Callable[[], Runtimes]

    async def once(self) -> int:
        """Looks at the release that is due. 1 if there was one."""
        async with self.pool.acquire() as connection, connection.transaction():
            due = await find_row(connection, queries("releases")["take_release"], OpenRelease)
            if due is None:
                return 0
            is_ready = due.state == "Ready" or await self._check(connection, due)
            crash_point("run_releases.before_commit")
        crash_point("run_releases.after_commit")
        self.after.outbox.notify()
        if is_ready and due.when_ready:
            await self._promote(due)
        return 1

    async def next_due(self) -> float | None:
        seconds = await self.pool.fetchval(queries("releases")["next_release"])
        return None if seconds is None else max(float(seconds), 0.0)

    async def _check(self, connection: Connection, due: OpenRelease) -> bool:
        sql = queries("releases")
        replayed = await replay_to_release(connection, due.id)
        invalidated = await connection.fetchval(sql["invalidate_built"], due.id)
        if replayed or invalidated or due.open_tasks or not due.was_compared:
            await connection.execute(sql["check_later"], due.id, SHORTLY, None)
            return False
        counts = sum((await count_units(connection, due.id)).values(), Counter[str]())
        fires = await connection.fetchval(sql["count_failed_fires"], due.id)
        if counts["failed"] or fires:
            message = f"{count_of(counts['failed'] + fires, 'partition')} failed: `trace task retry` continues"
            await connection.execute(sql["check_later"], due.id, LATER, message)
            return False
        behind = await fetch_rows(connection, sql["list_sources_behind"], SourceBehind, due.id, RECENTLY)
        if counts["missing"] or counts["pending"] or behind:
            waits_for = "; ".join(source.message for source in behind) or None
            await connection.execute(sql["check_later"], due.id, SHORTLY, waits_for)
            return False
        await connection.execute(sql["mark_ready"], due.id)
        return True

    async def _promote(self, due: OpenRelease) -> None:
        """What refuses it will not go away by itself: the release waits for a user."""
        try:
            await promote_release(self.pool, self.after, due.org_id, due.id, runtimes=self.runtimes())
        except TraceError as refusal:
            if refusal.retryable:
                raise
            await self.pool.execute(queries("releases")["mark_not_promoted"], due.id, refusal.message)
