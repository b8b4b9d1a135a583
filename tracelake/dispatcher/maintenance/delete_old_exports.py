"""Deletes users' exports that are older than they are kept (`retention.exports_days`), by the audit of their queries.

Each export is a folder with the id of its query. The audit row is stored when the query has ended, so an export that is
being written is never found. One whose audit row is deleted already stays.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final
from uuid import UUID

import asyncpg

from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.ports import ObjectStore
from tracelake.store.queries import fetch_column, queries

BATCH: Final = 1_000


@dataclass(frozen=True)
class DeleteOldExports(Periodic):
    every_seconds: ClassVar[float] = 6 * 3600.0

    pool: asyncpg.Pool
    objects: ObjectStore
    prefix: str
    keep: timedelta

    async def once(self) -> int:
        """Deletes all that are old enough; returns 0, since nothing is left to do at once."""
        if self.keep:
            listed = _exported(self.objects, Folder.parse(self.prefix))
            while batch := await asyncio.to_thread(lambda: list(itertools.islice(listed, BATCH))):
                ids = list({query for query, _ in batch})
                old = set(await fetch_column(self.pool, queries("retention")["list_old_queries"], ids, self.keep))
                await asyncio.to_thread(self.objects.delete, [name for query, name in batch if query in old])
        return 0


def _exported(objects: ObjectStore, folder: Folder) -> Iterator[tuple[UUID, ObjectName]]:
    """Files of exports, each with the query: `{organisation}/{query}/...` below the folder."""
    for stored in objects.objects(folder):
        _, query, *_ = (*stored.name.segments[len(folder.segments) :], "", "")
        with suppress(ValueError):
            yield UUID(query), stored.name
