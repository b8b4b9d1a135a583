"""Promises that were kept long ago are forgotten, some at each slow beat: else the outbox would grow for ever."""

from __future__ import annotations

from datetime import timedelta

from tracelake.dispatcher.control import Control
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

BATCH = 5_000


class PruneOutbox:
    """Goes along the ids, which rise with time, to the first that are too young, and then from the front again."""

    def __init__(self, control: Control, keep: timedelta) -> None:
        self._control = control
        self._keep = keep
        self._after = 0

    async def once(self) -> int:
        row = await self._control.hot.fetchrow(queries("outbox")["delete_done_entries"], self._after, self._keep, BATCH)
        assert row is not None  # noqa: S101 - a SELECT of scalars always has its row
        crash_point("prune_outbox.forgotten", when=row["forgotten"])
        self._after = row["next"]
        return int(row["forgotten"])

    async def next_due(self) -> float | None:
        return None
