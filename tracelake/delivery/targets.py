"""Where alerts go, asked of the Dispatcher and believed for seconds: secrets are kept no longer than needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

from tracelake.delivery.work_items import Item
from tracelake.wire.alert_messages import Target, TargetRequest
from tracelake.wire.client import DispatcherClient

MOST_KEPT = 10_000

Key = tuple[UUID, UUID, str]


class Targets:
    def __init__(
        self, dispatcher: DispatcherClient, seconds: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._dispatcher = dispatcher
        self._seconds = seconds
        self._monotonic = monotonic
        self._known: dict[Key, tuple[float, Target | None]] = {}

    async def of(self, item: Item) -> Target | None:
        """None: there is no such alert any more, or it does not go there. Unavailable while nobody can say."""
        key = (item.org_id, item.alert_definition_id, item.channel)
        until, known = self._known.get(key, (0.0, None))
        if self._monotonic() < until:
            return known
        asked = TargetRequest(org_id=item.org_id, alert_definition_id=item.alert_definition_id, channel=item.channel)
        found = next(iter(await self._dispatcher.alert_targets([asked])), None)
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        self._known[key] = (self._monotonic() + self._seconds, found)
        return found
