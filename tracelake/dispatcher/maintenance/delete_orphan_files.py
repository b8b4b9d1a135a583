"""Deletes files that no commit references: those of attempts that failed, lost their lease, or were superseded.

An attempt writes to its own folders. Some time after it ended, when it can no longer write there, files that no commit
references are deleted, with all of its scratch and the batches that it did not publish. Attempts are swept once, in the
order in which they began. Files of former commits stay: readers may have pinned them. Published batches stay:
`delete_applied_batches` deletes them when their rows are committed; dead ones are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from tracelake.dispatcher.maintenance.delete_applied_batches import AppliedBatch
from tracelake.dispatcher.maintenance.delete_replaced_files import list_named_files
from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.access.storage_locations import buffer_folder, repaired_name, scratch_folder, shared_buffer_folder
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.store.files_lock import may_delete_files
from tracelake.store.queries import Connection, Row, fetch_rows, queries
from tracelake.wire.task.markers import MARKER, attempt_folder

BATCH = 500
GRACE = timedelta(hours=1)
"""Longer than an attempt that lost its lease can keep writing unnoticed."""


class EndedAttempt(Row, frozen=True):
    task_id: UUID
    attempt: int
    started_at: datetime
    settled: bool
    """It can no longer write."""
    ended: bool
    org_id: UUID
    locations: list[str] | None
    buffers: list[UUID] | None

    def folders(self, scratch_bucket: str) -> Iterator[Folder]:
        if self.ended:
            yield scratch_folder(scratch_bucket, self.org_id, self.task_id, self.attempt)
            if self.buffers:
                yield shared_buffer_folder(scratch_bucket, self.task_id, self.attempt)
            for dataset in self.buffers or ():
                yield buffer_folder(scratch_bucket, dataset, self.task_id, self.attempt)
        for location in self.locations or ():
            yield attempt_folder(location, self.task_id, self.attempt)


@dataclass(frozen=True)
class DeleteOrphanFiles(Periodic):
    every_seconds = 60.0

    pool: asyncpg.Pool
    objects: ObjectStore
    scratch_bucket: str
    grace: timedelta = GRACE

    async def once(self) -> int:
        """Returns how many attempts were swept. The store is called under the mark's lock: a late completion waits."""
        sql = queries("orphan_files")
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute(sql["first_mark"])
            mark = await connection.fetchval(sql["lock_mark"])
            if mark is None or not await may_delete_files(connection):
                return 0
            attempts = _settled(
                await fetch_rows(connection, sql["list_attempts"], EndedAttempt, mark, self.grace, BATCH)
            )
            if attempts:
                crash_point("delete_orphan_files.before_remove")
                await self._sweep(connection, attempts)
                crash_point("delete_orphan_files.before_mark")
                await connection.execute(sql["move_mark"], attempts[-1].started_at)
        crash_point("delete_orphan_files.after_mark", when=attempts)
        return len(attempts)

    async def _sweep(self, connection: Connection, attempts: Sequence[EndedAttempt]) -> None:
        folders = [folder for attempt in attempts for folder in attempt.folders(self.scratch_bucket)]
        referenced = await list_named_files(connection, folders)
        batches = await _published_batches(connection, [attempt for attempt in attempts if attempt.buffers])
        referenced |= {name for batch in batches for name in batch.names}
        # A repaired batch that is just being uploaded has no row yet that references it.
        repaired = tuple(repaired_name(batch.id, "") for batch in batches)
        await asyncio.to_thread(_delete, self.objects, folders, referenced, repaired)


async def _published_batches(connection: Connection, attempts: Sequence[EndedAttempt]) -> list[AppliedBatch]:
    if not attempts:
        return []
    columns = [attempt.task_id for attempt in attempts], [attempt.attempt for attempt in attempts]
    return await fetch_rows(connection, queries("orphan_files")["list_published_batches"], AppliedBatch, *columns)


def _settled(attempts: Sequence[EndedAttempt]) -> list[EndedAttempt]:
    """Those before the first that may still write; of several that began at the same time, all or none."""
    waiting = next((attempt.started_at for attempt in attempts if not attempt.settled), None)
    return [attempt for attempt in attempts if waiting is None or attempt.started_at < waiting]


def _delete(
    objects: ObjectStore, folders: Sequence[Folder], referenced: set[ObjectName], prefixes: tuple[str, ...]
) -> None:
    for folder in folders:
        names = [stored.name for stored in objects.objects(folder)]
        kept = {name for name in names if name in referenced or name.name.startswith(prefixes)}
        # The marker stays as long as any file beside it does.
        objects.delete([name for name in names if name not in kept and not (kept and name.name == MARKER)])
