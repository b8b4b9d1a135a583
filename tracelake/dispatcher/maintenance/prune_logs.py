"""What tasks said long ago is forgotten, some at each slow beat."""

from __future__ import annotations

from datetime import timedelta

from tracelake.dispatcher.control import Control
from tracelake.store.queries import queries

BATCH = 5_000


class PruneLogs:
    def __init__(self, control: Control, keep: timedelta) -> None:
        self._control = control
        self._keep = keep

    async def once(self) -> int:
        return int(await self._control.hot.fetchval(queries("task_logs")["delete_old_lines"], self._keep, BATCH))

    async def next_due(self) -> float | None:
        return None
