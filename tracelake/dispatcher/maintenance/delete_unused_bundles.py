"""Code that no job of any version names leaves the store, and the list, some time after it was pushed.

First it can no longer be deployed, then its bytes go, and its row with them: whoever pushes it again meanwhile, or
names it in a DAG, finds it whole or must send it anew. One that a deploy has just looked at is left alone. A pass that
was cut off is finished by the next.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.domain.object_names import ObjectName
from tracelake.store.queries import queries

BATCH: Final = 100
BEAT_SECONDS: Final = 3600.0
REASON: Final = "no job has named it for a long time, and it is being removed; push it again"


class DeleteUnusedBundles:
    def __init__(self, control: Control, keep: timedelta) -> None:
        self._control = control
        self._keep = keep

    async def once(self) -> int:
        """How many it has removed."""
        sql = queries("bundles")
        await self._control.pool.execute(sql["give_up"], self._keep, REASON, BATCH)
        async with self._control.pool.acquire() as connection, connection.transaction():
            await self._take_back(connection)
            rows = await connection.fetch(sql["given_up"], REASON, BATCH)
            if rows:
                names = [ObjectName.parse(row["location"]) for row in rows]
                await asyncio.to_thread(self._control.objects.delete, names)
                await connection.execute(sql["remove"], [row["id"] for row in rows])
        return len(rows)

    async def _take_back(self, connection: asyncpg.pool.PoolConnectionProxy) -> None:
        """One that is named is kept if its bytes are there; else it stays refused, and its reason says what to do."""
        sql = queries("bundles")
        rows = await connection.fetch(sql["named_again"], REASON)
        if rows:
            head = self._control.objects.head
            found = [await asyncio.to_thread(head, ObjectName.parse(row["location"])) for row in rows]
            whole = [row["id"] for row, stored in zip(rows, found, strict=True) if stored is not None]
            await connection.execute(sql["take_back"], whole)

    async def next_due(self) -> float | None:
        return BEAT_SECONDS
