"""The addresses of alerts, fetched from the Dispatcher and kept for seconds: secrets are kept no longer than needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

from tracelake.delivery.work_items import WorkItem
from tracelake.wire.client import DispatcherClient
from tracelake.wire.user.alerts import Target, TargetRequest

MOST_KEPT = 10_000

ChannelKey = tuple[UUID, UUID, str]


class Targets:
    def __init__(
        self, dispatcher: DispatcherClient, seconds: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._dispatcher = dispatcher
        self._seconds = seconds
        self._monotonic = monotonic
        self._known: dict[ChannelKey, tuple[float, Target | None]] = {}

    async def of(self, item: WorkItem) -> Target | None:
        """None: the alert was removed, or no longer uses the channel. Unavailable if the Dispatcher does not answer."""
        key = (item.org_id, item.alert_definition_id, item.channel)
        until, known = self._known.get(key, (0.0, None))
        if self._monotonic() < until:
            return known
        request = TargetRequest(org_id=item.org_id, alert_definition_id=item.alert_definition_id, channel=item.channel)
        found = next(iter(await self._dispatcher.alert_targets([request])), None)
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        self._known[key] = (self._monotonic() + self._seconds, found)
        return found
