"""Files that no commit names are removed: those of attempts that failed, were lost, or were old news.

An attempt writes into folders of its own. Some time after it ended, when nobody can be writing there any more, what a
commit names stays and the rest goes, all of its scratch too, and batches that it never published. Attempts are looked
at once, in the order in which they began. A file of a former commit stays: readers may have pinned it. A batch that was
published stays: `clear_batches` removes it when its rows are in, and nobody one that is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.domain.object_names import Folder, ObjectName
from tracelake.domain.storage_locations import buffer_folder, repaired_name, scratch_folder, shared_buffer_folder
from tracelake.errors import InvalidRequest
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.markers import MARKER, attempt_folder

BATCH = 500
GRACE = timedelta(hours=1)
"""Longer than an attempt that lost its lease can go on writing unnoticed."""
BEAT_SECONDS = 60.0


class DeleteOrphanFiles:
    def __init__(self, control: Control, grace: timedelta = GRACE) -> None:
        self._control = control
        self._grace = grace

    async def once(self) -> int:
        """How many attempts it has done with. The store is asked under the mark's lock: a late reply waits for it."""
        sql = queries("janitor")
        async with self._control.pool.acquire() as connection, connection.transaction():
            await connection.execute(sql["first_mark"])
            mark = await connection.fetchval(sql["take_mark"])
            if mark is None:
                return 0
            rows = await connection.fetch(sql["begun_since"], mark, self._grace, BATCH)
            done = _settled(rows)
            if done:
                crash_point("delete_orphan_files.before_remove")
                await self._sweep(connection, done)
                crash_point("delete_orphan_files.before_mark")
                await connection.execute(sql["set_mark"], done[-1]["started_at"])
        crash_point("delete_orphan_files.after_mark", when=done)
        return len(done)

    async def next_due(self) -> float | None:
        return BEAT_SECONDS

    async def _sweep(self, connection: asyncpg.pool.PoolConnectionProxy, rows: Sequence[asyncpg.Record]) -> None:
        folders = list(_folders(rows, self._control.places.scratch_bucket))
        found = await connection.fetch(queries("janitor")["named_files"], [str(folder) for folder in folders])
        named = {Folder.parse(row["location"]).object(row["name"]) for row in found}
        published = await self._published(connection, [row for row in rows if row["buffers"]])
        named |= {name for row in published for name in _batches(row)}
        # One that a person is just putting there has no row yet that names it.
        repaired = tuple(repaired_name(row["id"], "") for row in published)
        await asyncio.to_thread(_remove, self._control.objects, folders, named, repaired)

    async def _published(
        self, connection: asyncpg.pool.PoolConnectionProxy, rows: Sequence[asyncpg.Record]
    ) -> Sequence[asyncpg.Record]:
        attempts = [row["task_id"] for row in rows], [row["attempt"] for row in rows]
        return await connection.fetch(queries("janitor")["published_batches"], *attempts) if rows else ()


def _batches(row: asyncpg.Record) -> Iterator[ObjectName]:
    for uri in (row["batch_uri"], row["repaired_uri"]):
        with suppress(InvalidRequest):
            if uri:
                yield ObjectName.parse(uri)


def _settled(rows: Sequence[asyncpg.Record]) -> list[asyncpg.Record]:
    """Those before the first that may still write; of some that began at one moment, all or none."""
    waiting = next((row["started_at"] for row in rows if not row["settled"]), None)
    return [row for row in rows if waiting is None or row["started_at"] < waiting]


def _folders(rows: Sequence[asyncpg.Record], scratch_bucket: str) -> Iterator[Folder]:
    for row in rows:
        if row["ended"]:
            yield scratch_folder(scratch_bucket, row["org_id"], row["task_id"], row["attempt"])
            if row["buffers"]:
                yield shared_buffer_folder(scratch_bucket, row["task_id"], row["attempt"])
            for dataset in row["buffers"] or ():
                yield buffer_folder(scratch_bucket, dataset, row["task_id"], row["attempt"])
        for location in row["locations"] or ():
            yield attempt_folder(location, row["task_id"], row["attempt"])


def _remove(
    objects: ObjectStore, folders: Sequence[Folder], named: set[ObjectName], beginnings: tuple[str, ...]
) -> None:
    for folder in folders:
        there = [stored.name for stored in objects.objects(folder)]
        kept = {name for name in there if name in named or name.name.startswith(beginnings)}
        # Where something counts, the marker that says so stays with it.
        objects.delete([name for name in there if name not in kept and not (kept and name.name == MARKER)])
