"""Deletes rows that are older than `retention.*` keeps them and that nothing needs any more, a batch at a time.

Needed are: what a commit refers to, since commits are the ledger and `as of` reads them; keys of partitions and
commits, since one task for a key is one task for ever; and events whose commit is current, which the reconciler
compares. What is needed stays, however old it is. The tables are read a page at a time, all of them once a day.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Final
from uuid import UUID

import asyncpg

from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.store.queries import Row, fetch_row, queries

BATCH: Final = 1_000
ROUND_SECONDS: Final = 24 * 3600.0
SLICE: Final = timedelta(days=1)
FRONT: Final = UUID(int=0)


class DeletedPage(Row, frozen=True):
    deleted: int
    next: UUID | None
    """The last that was seen; None after all."""


@dataclass
class DeleteOldTasks(Periodic):
    """By id, which rises with time; from the front again a day after all were seen."""

    every_seconds: ClassVar[float] = 60.0

    pool: asyncpg.Pool
    keep: timedelta
    after: UUID = FRONT
    rests_until: float = 0.0

    async def once(self) -> int:
        """Returns 1 while there is another page."""
        if not self.keep or time.monotonic() < self.rests_until:
            return 0
        sql = queries("retention")["delete_old_tasks"]
        page = await fetch_row(self.pool, sql, DeletedPage, self.after, self.keep, BATCH)
        self.after = page.next or FRONT
        self.rests_until = 0.0 if page.next else time.monotonic() + ROUND_SECONDS
        return 1 if page.next else 0


@dataclass
class DeleteOldEvents(Periodic):
    """A day of events at a time; from the first again a day after all were seen."""

    every_seconds: ClassVar[float] = 60.0

    pool: asyncpg.Pool
    keep: timedelta
    since: datetime | None = None
    rests_until: float = 0.0

    async def once(self) -> int:
        """Returns 1 while there is another page."""
        if not self.keep or time.monotonic() < self.rests_until:
            return 0
        sql = queries("retention")
        self.since = self.since or await self.pool.fetchval(sql["find_oldest_event"])
        limit: datetime = await self.pool.fetchval(sql["find_limit"], self.keep)
        since = limit if self.since is None else min(self.since, limit)
        stop = min(since + SLICE, limit)
        deleted = await self.pool.fetchval(sql["delete_old_events"], since, stop, BATCH)
        if deleted < BATCH:
            self.since = None if stop == limit else stop
            self.rests_until = time.monotonic() + ROUND_SECONDS if stop == limit else 0.0
        return 0 if self.rests_until else 1


@dataclass(frozen=True)
class DeleteOldRows(Periodic):
    """Of a table that is small, or has an index for it."""

    every_seconds: ClassVar[float] = 3600.0

    pool: asyncpg.Pool
    statement: str
    """Its name in `sql/retention.sql`."""
    keep: timedelta

    async def once(self) -> int:
        if not self.keep:
            return 0
        return int(await self.pool.fetchval(queries("retention")[self.statement], self.keep, BATCH))
