"""Deletes batches from the object store whose rows were committed some time ago. Dead batches stay, for replays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import asyncpg

from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.domain.access.object_names import ObjectName
from tracelake.errors import InvalidRequest
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.store.files_lock import may_delete_files
from tracelake.store.queries import Row, fetch_rows, queries

BATCH = 500


class AppliedBatch(Row, frozen=True):
    id: UUID
    batch_uri: str
    repaired_uri: str | None

    @property
    def names(self) -> Iterator[ObjectName]:
        """Its objects; a URI that is not the name of an object is left out."""
        for uri in (self.batch_uri, self.repaired_uri):
            with suppress(InvalidRequest):
                if uri:
                    yield ObjectName.parse(uri)


@dataclass(frozen=True)
class DeleteAppliedBatches(Periodic):
    every_seconds = 60.0

    pool: asyncpg.Pool
    objects: ObjectStore
    keep: timedelta

    async def once(self) -> int:
        """Returns how many were deleted. The store is called under row locks that no other statement waits for."""
        sql = queries("buffered")
        async with self.pool.acquire() as connection, connection.transaction():
            if not await may_delete_files(connection):
                return 0
            batches = await fetch_rows(connection, sql["lock_deletable"], AppliedBatch, self.keep, BATCH)
            if batches:
                crash_point("delete_applied_batches.before_remove")
                names = [name for batch in batches for name in batch.names]
                await asyncio.to_thread(self.objects.delete, names)
                crash_point("delete_applied_batches.before_mark")
                await connection.execute(sql["mark_deleted"], [batch.id for batch in batches])
        crash_point("delete_applied_batches.after_mark", when=batches)
        return len(batches)
