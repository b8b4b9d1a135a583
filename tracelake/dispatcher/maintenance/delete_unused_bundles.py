"""Deletes bundles that no job of any version refers to, some time after they were pushed.

A pass first refuses unused bundles, so that they can no longer be deployed, and then deletes their bytes and rows. A
bundle that is pushed or deployed meanwhile is kept whole, or must be uploaded again; one that a deploy has locked is
skipped. The next pass finishes one that was interrupted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

import asyncpg

from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.domain.access.object_names import ObjectName
from tracelake.ports import ObjectStore
from tracelake.store.files_lock import may_delete_files
from tracelake.store.queries import Connection, Row, fetch_rows, queries

BATCH: Final = 100
REASON: Final = "no job has named it for a long time, and it is being removed; push it again"


class UnusedBundle(Row, frozen=True):
    id: UUID
    location: str

    @property
    def name(self) -> ObjectName:
        return ObjectName.parse(self.location)


@dataclass(frozen=True)
class DeleteUnusedBundles(Periodic):
    every_seconds = 3600.0

    pool: asyncpg.Pool
    objects: ObjectStore
    keep: timedelta

    async def once(self) -> int:
        """Returns how many were deleted."""
        sql = queries("bundles")
        await self.pool.execute(sql["refuse_unused"], self.keep, REASON, BATCH)
        async with self.pool.acquire() as connection, connection.transaction():
            if not await may_delete_files(connection):
                return 0
            await self._restore_used(connection)
            bundles = await fetch_rows(connection, sql["lock_unused"], UnusedBundle, REASON, BATCH)
            if bundles:
                await asyncio.to_thread(self.objects.delete, [bundle.name for bundle in bundles])
                await connection.execute(sql["delete_bundles"], [bundle.id for bundle in bundles])
        return len(bundles)

    async def _restore_used(self, connection: Connection) -> None:
        """A bundle that a job refers to becomes ready again if its bytes exist; else it stays refused."""
        sql = queries("bundles")
        bundles = await fetch_rows(connection, sql["lock_used_again"], UnusedBundle, REASON)
        stored = [await asyncio.to_thread(self.objects.head, bundle.name) for bundle in bundles]
        if whole := [bundle.id for bundle, head in zip(bundles, stored, strict=True) if head is not None]:
            await connection.execute(sql["mark_ready"], whole)
