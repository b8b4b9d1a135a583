"""Deletes rows that are older than they are kept, a batch at a time.

Outbox entries, task logs, query audit, slots and deliveries of sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Row, fetch_row, queries

BATCH = 5_000


class DeletedEntries(Row, frozen=True):
    forgotten: int
    next: int
    """The last that was seen; 0 after all."""


@dataclass
class PruneOutbox(Periodic):
    """Deletes entries that are done, in the order of their ids, up to the first that are too recent; then restarts."""

    pool: asyncpg.Pool
    keep: timedelta
    after: int = 0

    async def once(self) -> int:
        if not self.keep:
            return 0
        sql = queries("outbox")["delete_done_entries"]
        page = await fetch_row(self.pool, sql, DeletedEntries, self.after, self.keep, BATCH)
        self.after = page.next
        crash_point("prune_outbox.forgotten", when=page.forgotten)
        return page.forgotten


@dataclass(frozen=True)
class PruneLogs(Periodic):
    pool: asyncpg.Pool
    keep: timedelta

    async def once(self) -> int:
        if not self.keep:
            return 0
        return int(await self.pool.fetchval(queries("task_logs")["delete_old_lines"], self.keep, BATCH))


@dataclass(frozen=True)
class PruneAudit(Periodic):
    every_seconds = 60.0

    pool: asyncpg.Pool
    keep: timedelta

    async def once(self) -> int:
        if not self.keep:
            return 0
        return int(await self.pool.fetchval(queries("relations")["prune_audit"], self.keep, BATCH))


@dataclass(frozen=True)
class PruneSources(Periodic):
    """Deletes slots, bodies of deliveries, and keys of deliveries whose signature has become too old."""

    every_seconds = 60.0

    pool: asyncpg.Pool
    keep_slots: timedelta
    keep_bodies: timedelta

    async def once(self) -> int:
        sql = queries("hooks")
        slots = int(await self.pool.fetchval(queries("schedules")["prune_slots"], self.keep_slots, BATCH))
        bodies = int(await self.pool.fetchval(sql["prune_bodies"], self.keep_bodies, BATCH))
        keys = int(await self.pool.fetchval(sql["prune_keys"], self.keep_bodies, BATCH))
        return slots + bodies + keys
