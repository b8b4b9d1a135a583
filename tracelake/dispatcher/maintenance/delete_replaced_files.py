"""Deletes files of partitions that were replaced long ago; else a dataset that is often rewritten grows for ever.

Files stay for some days after the commit that replaced their partition (`dispatcher.replaced_kept_days`), for readers
that have pinned an earlier commit, and as long as a running task has pinned one. After that, a reader of such a commit
is refused with `snapshot_too_old`; the partition's row stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import asyncpg
import structlog

from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.errors import InvalidRequest
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.store.files_lock import may_delete_files
from tracelake.store.queries import Queryable, Row, fetch_rows, queries
from tracelake.wire.task.markers import MARKER

log = structlog.get_logger()

BATCH = 200


class ReplacedPartition(Row, frozen=True):
    dataset_version: UUID
    partition_key: str
    location: str | None
    names: list[str]


@dataclass(frozen=True)
class DeleteReplacedFiles(Periodic):
    every_seconds = 600.0

    pool: asyncpg.Pool
    objects: ObjectStore
    keep: timedelta

    async def once(self) -> int:
        """Returns how many partitions lost their files. Deleted before the commit: after a crash, deleted again."""
        if not self.keep:
            return 0
        sql = queries("orphan_files")
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute(sql["first_mark"])
            if await connection.fetchval(sql["lock_mark"]) is None or not await may_delete_files(connection):
                return 0
            replaced = await fetch_rows(
                connection, sql["mark_replaced_partitions"], ReplacedPartition, self.keep, BATCH
            )
            if files := _files(replaced):
                referenced = await list_named_files(connection, files)
                crash_point("delete_replaced_files.before_remove")
                await asyncio.to_thread(_delete, self.objects, files, referenced)
                crash_point("delete_replaced_files.before_mark")
        crash_point("delete_replaced_files.after_mark", when=replaced)
        return len(replaced)


class NamedFile(Row, frozen=True):
    location: str
    name: str


async def list_named_files(database: Queryable, folders: Iterable[Folder]) -> set[ObjectName]:
    """The files in these folders that a partition of any generation names, unless they were marked as removed."""
    sql = queries("orphan_files")["list_referenced_files"]
    return set(_names(await fetch_rows(database, sql, NamedFile, sorted(map(str, folders)))))


def _files(partitions: Sequence[ReplacedPartition]) -> Mapping[Folder, set[ObjectName]]:
    """By folder. A name that cannot be parsed is left out, so that it does not block the others."""
    files: dict[Folder, set[ObjectName]] = {}
    for partition in partitions:
        try:
            if partition.location:  # a table's partition has no files
                folder = Folder.parse(partition.location)
                files.setdefault(folder, set()).update([folder.object(name) for name in partition.names])
        except InvalidRequest as wrong:
            subject = {"dataset_version": str(partition.dataset_version), "partition": partition.partition_key}
            log.warning("files of a replaced partition are not deleted", **subject, because=wrong.message)
    return files


def _names(files: Sequence[NamedFile]) -> Iterator[ObjectName]:
    for file in files:
        with suppress(InvalidRequest):
            yield Folder.parse(file.location).object(file.name)


def _delete(objects: ObjectStore, files: Mapping[Folder, set[ObjectName]], referenced: set[ObjectName]) -> None:
    objects.delete(sorted(set().union(*files.values()) - referenced, key=str))
    crash_point("delete_replaced_files.files_removed")
    for folder in files:
        left = [stored.name for stored in objects.objects(folder)]
        if [name.name for name in left] == [MARKER]:  # it lists no existing file any more
            objects.delete(left)
