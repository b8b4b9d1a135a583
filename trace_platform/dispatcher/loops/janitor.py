"""Files that no commit names are removed: those of attempts that failed, were lost, or were old news.

An attempt writes into a folder of its own. Some time after it ended, when nobody can be writing there any more, what a
commit names stays and the rest goes. Each attempt is looked at once. A file of a former commit stays: readers may have
pinned it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta

import asyncpg

from trace_platform.dispatcher.control import Control
from trace_platform.domain.objects import Folder, ObjectName
from trace_platform.markers import MARKER, attempt_folder
from trace_platform.ports import ObjectStore
from trace_platform.store.queries import queries

BATCH = 100
GRACE = timedelta(hours=1)
"""Longer than an attempt that lost its lease can go on writing unnoticed."""


class Janitor:
    def __init__(self, control: Control, grace: timedelta = GRACE) -> None:
        self._control = control
        self._grace = grace

    async def once(self) -> int:
        """Under locks on the attempts, which nobody else wants any more; the store is asked meanwhile."""
        sql = queries("janitor")
        async with self._control.pool.acquire() as connection, connection.transaction():
            rows = await connection.fetch(sql["take_ended"], self._grace, BATCH)
            if not rows:
                return 0
            folders = list(_folders(rows))
            found = await connection.fetch(sql["named_files"], [str(folder) for folder in folders])
            named = {Folder.parse(row["location"]).object(row["name"]) for row in found}
            await asyncio.to_thread(_sweep, self._control.objects, folders, named)
            tasks, attempts = [row["task_id"] for row in rows], [row["attempt"] for row in rows]
            await connection.execute(sql["mark_swept"], tasks, attempts)
        return len(rows)

    async def next_due(self) -> float | None:
        found: float | None = await self._control.pool.fetchval(queries("janitor")["next_ended"], self._grace)
        return None if found is None else max(found, 0.001)


def _folders(rows: Sequence[asyncpg.Record]) -> Iterator[Folder]:
    for row in rows:
        for location in row["locations"] or ():
            yield attempt_folder(location, row["task_id"], row["attempt"])


def _sweep(objects: ObjectStore, folders: Sequence[Folder], named: set[ObjectName]) -> None:
    for folder in folders:
        there = [stored.name for stored in objects.objects(folder)]
        kept = {name for name in there if name in named}
        # Where something counts, the marker that says so stays with it.
        objects.delete([name for name in there if name not in kept and not (kept and name.name == MARKER)])
