"""Removes generations that no active version has served for some days (`retention.left_generations_days`), or dropped.

First one transaction removes the partitions, records the removal, and forgets what the writing jobs have done: a
version that is activated again then builds the generation anew. Files are deleted afterwards. Nothing refers to them
any more, so a crash in between leaves files that the next pass deletes. Files of attempts that began later are not
touched: the generation may be built again already. Nor are files that partitions of other generations name: they are
deleted when the last of those is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Final
from uuid import UUID

import asyncpg

from tracelake.dispatcher.maintenance.delete_replaced_files import list_named_files
from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.store.files_lock import may_delete_files
from tracelake.store.queries import Row, fetch_rows, find_row, queries
from tracelake.wire.task.markers import MARKER, attempt_folder

BATCH: Final = 20
NAMES: Final = 1_000


class LeftGeneration(Row, frozen=True):
    dataset_version: UUID
    dataset_uuid: UUID
    org_id: UUID
    storage_location: str


class RemovedGeneration(Row, frozen=True):
    id: int
    dataset_uuid: UUID
    storage_location: str
    removed_at: datetime


class LaterAttempt(Row, frozen=True):
    task_id: UUID
    attempt: int


@dataclass(frozen=True)
class RemoveLeftGenerations(Periodic):
    every_seconds: ClassVar[float] = 600.0

    pool: asyncpg.Pool
    objects: ObjectStore
    keep: timedelta

    async def once(self) -> int:
        """Returns how many generations were removed, or lost their files."""
        removed = await self._remove()
        if not await may_delete_files(self.pool):  # a backup that began before `_remove` has these files
            return removed
        undeleted = await fetch_rows(self.pool, queries("left_generations")["list_undeleted"], RemovedGeneration, BATCH)
        for generation in undeleted:
            await self._delete_files(generation)
        return removed + len(undeleted)

    async def _remove(self) -> int:
        sql = queries("left_generations")
        async with self.pool.acquire() as connection, connection.transaction():
            left = await find_row(connection, sql["lock_left"], LeftGeneration, self.keep)
            if left is None:
                return 0
            await connection.fetchval(sql["remove_generation"], left.dataset_version)
            await connection.fetchval(queries("releases")["retire_releases"])
            crash_point("remove_left_generations.before_commit")
        crash_point("remove_left_generations.after_commit")
        return 1

    async def _delete_files(self, generation: RemovedGeneration) -> None:
        sql = queries("left_generations")
        # What is listed now was there before these attempts are read: an attempt that begins later is not listed.
        names = await asyncio.to_thread(_listed, self.objects, Folder.parse(generation.storage_location))
        since = generation.dataset_uuid, generation.removed_at
        later = await fetch_rows(self.pool, sql["list_later_attempts"], LaterAttempt, *since)
        kept = [attempt_folder(generation.storage_location, row.task_id, row.attempt) for row in later]
        named = await list_named_files(self.pool, {_folder_of(name) for name in names})
        await asyncio.to_thread(_delete, self.objects, names, kept, named)
        crash_point("remove_left_generations.before_mark")
        await self.pool.execute(sql["mark_deleted"], generation.id)
        crash_point("remove_left_generations.after_mark")


def _folder_of(name: ObjectName) -> Folder:
    return Folder(name.bucket, name.segments[:-1])


def _listed(objects: ObjectStore, folder: Folder) -> list[ObjectName]:
    return [stored.name for stored in objects.objects(folder)]


def _delete(
    objects: ObjectStore, names: Collection[ObjectName], kept: Collection[Folder], named: Collection[ObjectName]
) -> None:
    markers = {_folder_of(name).object(MARKER) for name in named}  # a marker stays as long as any file beside it does
    left = [name for name in names if name not in named and name not in markers]
    doomed = [name for name in left if not any(folder.holds(name) for folder in kept)]
    for start in range(0, len(doomed), NAMES):
        objects.delete(doomed[start : start + NAMES])
