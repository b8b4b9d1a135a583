"""Files of partitions that were replaced long ago are removed: else a dataset that is often rewritten grows for ever.

A partition's files stay for a while after the commit that replaced it (`dispatcher.replaced_kept_days`): whoever has
pinned an earlier commit reads them. So does a task that is still running, however old its pin is. Once they are gone, a
reader of a commit that needs them is refused with `snapshot_too_old`. That they were there is remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import asyncpg
import structlog

from tracelake.dispatcher.control import Control
from tracelake.domain.object_names import Folder, ObjectName
from tracelake.errors import InvalidRequest
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.markers import MARKER

log = structlog.get_logger()

BATCH = 200
BEAT_SECONDS = 600.0


class DeleteReplacedFiles:
    def __init__(self, control: Control, keep: timedelta) -> None:
        self._control = control
        self._keep = keep

    async def once(self) -> int:
        """How many partitions lost their files. Removed before it is noted: a kill in between means removing again."""
        sql = queries("janitor")
        async with self._control.pool.acquire() as connection, connection.transaction():
            await connection.execute(sql["first_mark"])
            if await connection.fetchval(sql["take_mark"]) is None:
                return 0
            rows = await connection.fetch(sql["delete_replaced_partitions"], self._keep, BATCH)
            if gone := _readable(rows):
                named = await connection.fetch(sql["named_files"], sorted(map(str, gone)))
                crash_point("delete_replaced_files.before_remove")
                await asyncio.to_thread(_remove, self._control.objects, gone, set(_names(named)))
                crash_point("delete_replaced_files.before_mark")
        crash_point("delete_replaced_files.after_mark", when=rows)
        return len(rows)

    async def next_due(self) -> float | None:
        return BEAT_SECONDS


def _readable(rows: Sequence[asyncpg.Record]) -> Mapping[Folder, set[ObjectName]]:
    """The files that are to go, by folder. What cannot be read as a name is left out: it must not keep the others."""
    found: dict[Folder, set[ObjectName]] = {}
    for row in rows:
        try:
            if row["location"]:  # a table's partition has no files
                folder = Folder.parse(row["location"])
                found.setdefault(folder, set()).update([folder.object(name) for name in row["names"]])
        except InvalidRequest as wrong:
            subject = {"dataset_version": str(row["dataset_version"]), "partition": row["partition_key"]}
            log.warning("files of a replaced partition are left", **subject, because=wrong.message)
    return found


def _names(named: Sequence[asyncpg.Record]) -> Iterator[ObjectName]:
    for row in named:
        with suppress(InvalidRequest):
            yield Folder.parse(row["location"]).object(row["name"])


def _remove(objects: ObjectStore, gone: Mapping[Folder, set[ObjectName]], still: set[ObjectName]) -> None:
    objects.delete(sorted(set().union(*gone.values()) - still, key=str))
    crash_point("delete_replaced_files.files_removed")
    for folder in gone:
        left = [stored.name for stored in objects.objects(folder)]
        if [name.name for name in left] == [MARKER]:  # which lists nothing any more
            objects.delete(left)
