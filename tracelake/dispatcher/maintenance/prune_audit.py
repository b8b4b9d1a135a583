"""Audit rows of queries are deleted when they are older than they are kept for, some at each beat."""

from __future__ import annotations

from datetime import timedelta

from tracelake.dispatcher.control import Control
from tracelake.store.queries import queries

BATCH = 5_000
BEAT_SECONDS = 60.0


class PruneAudit:
    def __init__(self, control: Control, keep: timedelta) -> None:
        self._control = control
        self._keep = keep

    async def once(self) -> int:
        return int(await self._control.pool.fetchval(queries("relations")["prune_audit"], self._keep, BATCH))

    async def next_due(self) -> float | None:
        return BEAT_SECONDS
