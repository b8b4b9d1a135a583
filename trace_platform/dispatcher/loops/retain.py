"""Files of partitions that were replaced long ago are removed: else a dataset that is often rewritten grows for ever.

A partition's files stay for a while after the commit that replaced it (`dispatcher.replaced_kept_days`): whoever has
pinned an earlier commit reads them. So does a task that is still running, however old its pin is. Once they are gone, a
reader of a commit that needs them is refused with `snapshot_too_old`. That they were there is remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import asyncpg

from trace_platform.crash_points import crash_point
from trace_platform.dispatcher.control import Control
from trace_platform.domain.objects import Folder, ObjectName
from trace_platform.markers import MARKER
from trace_platform.ports import ObjectStore
from trace_platform.store.queries import queries

BATCH = 200
BEAT_SECONDS = 600.0


class Retain:
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
            rows = await connection.fetch(sql["forget_replaced"], self._keep, BATCH)
            if rows:
                named = await connection.fetch(sql["named_files"], sorted({row["location"] for row in rows}))
                still = {Folder.parse(row["location"]).object(row["name"]) for row in named}
                crash_point("retain.before_remove")
                await asyncio.to_thread(_remove, self._control.objects, rows, still)
                crash_point("retain.before_mark")
        crash_point("retain.after_mark", when=rows)
        return len(rows)

    async def next_due(self) -> float | None:
        return BEAT_SECONDS


def _remove(objects: ObjectStore, rows: Sequence[asyncpg.Record], still: set[ObjectName]) -> None:
    folders = {row["location"]: Folder.parse(row["location"]) for row in rows}
    names = {folders[row["location"]].object(name) for row in rows for name in row["names"]}
    objects.delete(sorted(names - still, key=str))
    crash_point("retain.files_removed")
    for folder in folders.values():
        left = [stored.name for stored in objects.objects(folder)]
        if [name.name for name in left] == [MARKER]:  # which lists nothing any more
            objects.delete(left)
