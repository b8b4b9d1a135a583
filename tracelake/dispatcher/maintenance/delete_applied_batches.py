"""Batches whose rows were committed some time ago leave the object store. Dead ones stay, for people."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from tracelake.dispatcher.control import Control
from tracelake.domain.object_names import ObjectName
from tracelake.errors import InvalidRequest
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

BATCH = 500
BEAT_SECONDS = 60.0


class DeleteAppliedBatches:
    def __init__(self, control: Control, keep: timedelta) -> None:
        self._control = control
        self._keep = keep

    async def once(self) -> int:
        """How many it has removed. The store is asked under the rows' locks, which nobody else wants."""
        sql = queries("buffered")
        async with self._control.pool.acquire() as connection, connection.transaction():
            rows = await connection.fetch(sql["to_remove"], self._keep, BATCH)
            if rows:
                crash_point("delete_applied_batches.before_remove")
                await asyncio.to_thread(
                    _remove,
                    self._control.objects,
                    [uri for row in rows for uri in (row["batch_uri"], row["repaired_uri"]) if uri],
                )
                crash_point("delete_applied_batches.before_mark")
                await connection.execute(sql["removed"], [row["id"] for row in rows])
        crash_point("delete_applied_batches.after_mark", when=rows)
        return len(rows)

    async def next_due(self) -> float | None:
        return BEAT_SECONDS


def _remove(objects: ObjectStore, uris: Sequence[str]) -> None:
    names = []
    for uri in uris:
        with suppress(InvalidRequest):
            names.append(ObjectName.parse(uri))
    objects.delete(names)
