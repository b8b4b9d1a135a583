"""Step 3 of one event: what the outbox owes is done. Routing is one statement; wake-ups are take, act, mark.

Next: `route_event.py`, then the queue.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta

import structlog

from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.route_event import BATCH, HOLD, WakeUp, route
from trace_platform.domain.task import Backoff, retry_delay
from trace_platform.errors import Unavailable
from trace_platform.ports import Outgoing
from trace_platform.store.queries import queries

log = structlog.get_logger()

BACKOFF = Backoff(1, 300)


class Drain:
    """One replica's share of the outbox; any number of replicas drain it together."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._slots_wanted = True

    async def once(self) -> int:
        events = await route(self._control, "route_event")
        invalidations = await route(self._control, "route_invalidation")
        await self._publish([*events.wake_ups, *invalidations.wake_ups])
        woken = await self._control.pool.fetchval(queries("route")["wake_waiting"])
        taken = await self._take()
        await self._publish(taken)
        return events.handled + invalidations.handled + int(woken) + len(taken)

    async def next_due(self) -> float | None:
        found: float | None = await self._control.pool.fetchval(queries("outbox")["next_due"])
        return found

    async def _take(self) -> list[WakeUp]:
        rows = await self._control.pool.fetch(queries("outbox")["take_promises"], BATCH, self._control.replica, HOLD)
        return [WakeUp(row["id"], row["payload"]) for row in rows]

    async def _publish(self, wake_ups: Sequence[WakeUp]) -> None:
        """Act without a transaction, then mark. Published twice is harmless: a claim is only given once."""
        by_queue: dict[str, list[tuple[int, Outgoing]]] = defaultdict(list)
        for one in wake_ups:
            told = json.loads(one.payload)
            body = json.dumps({"task_id": told["task_id"]}).encode()
            by_queue[queue_of(told["runtime"])].append((one.promise, Outgoing(body)))
        for queue, messages in by_queue.items():
            promises = [promise for promise, _ in messages]
            try:
                await self._control.queue.publish(queue, [message for _, message in messages])
            except Unavailable as away:
                await self._put_off(promises, away.message)
            else:
                await self._control.pool.execute(queries("outbox")["keep_promises"], promises, self._control.replica)

    async def _put_off(self, promises: Sequence[int], error: str) -> None:
        """The queue is away: again soon, for as long as it takes; nothing is wrong with the promise."""
        delay = timedelta(seconds=retry_delay(1, BACKOFF, 0.5))
        await self._control.pool.execute(
            queries("outbox")["put_off_promises"],
            promises,
            self._control.replica,
            [delay] * len(promises),
            [error] * len(promises),
            [False] * len(promises),
        )


def queue_of(runtime: str) -> str:
    """The queue on which workers of this runtime wait."""
    return f"tasks-{runtime}"
