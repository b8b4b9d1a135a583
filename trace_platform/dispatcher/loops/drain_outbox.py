"""Step 3 of one event: what the outbox owes is done. Routing is one statement; the rest is take, act, mark.

Next: `route_event.py`, then the queue.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast
from uuid import UUID

import msgspec
import structlog

from trace_platform.crash_points import crash_point
from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.loops.call_functions import CallFunctions
from trace_platform.dispatcher.route_event import BATCH, HOLD, Routed, route
from trace_platform.dispatcher.run_in_process import run_in_process
from trace_platform.domain.task import Backoff, retry_delay
from trace_platform.errors import Unavailable
from trace_platform.ports import Outgoing
from trace_platform.store.queries import queries

log = structlog.get_logger()
A = TypeVar("A")
B = TypeVar("B")

BACKOFF = Backoff(1, 300)
NOWHERE_DELAY = timedelta(minutes=1)
"""How soon to try again a task whose runtime the settings do not know: they may, after a restart."""
BUFFER_QUEUE = "buffer"
IN_A_ROW = 10 * BATCH
"""So many events are routed before the other promises have their turn."""


@dataclass(frozen=True)
class Promise:
    """A row of the outbox in our hands, and how it is kept: a message, a task run here, a function called."""

    id: int
    queue: str | None = None
    message: bytes = b""
    task_id: UUID | None = None
    function: bool = False


class Drain:
    """One replica's share of the outbox; any number of replicas drain it together."""

    def __init__(self, control: Control, functions: CallFunctions | None = None) -> None:
        self._control = control
        self._functions = functions
        self._next_due: float | None = None

    async def once(self) -> int:
        done = await self._route_events()
        seen = await self._control.hot.fetchrow(queries("outbox")["look"])
        assert seen is not None  # noqa: S101 - a SELECT of scalars always has its row
        self._next_due = seen["next_due"]
        if seen["invalidations"]:
            invalidations = await route(self._control, "route_invalidation")
            crash_point("drain_outbox.invalidations_routed", when=invalidations.handled)
            await self._wake(invalidations)
            done += invalidations.handled
        if seen["waiting"]:
            woken = int(await self._control.hot.fetchval(queries("route")["wake_waiting"]))
            crash_point("drain_outbox.slots_given", when=woken)
            done += woken
        if seen["promises"] or done:  # what was done may owe more
            taken, given_up = await self._take()
            crash_point("drain_outbox.promises_taken", when=taken)
            await self._keep(taken)
            done += len(taken) + given_up
        return done

    async def next_due(self) -> float | None:
        """As the last look found it: when it is asked, that look found nothing to do, so nothing has changed since."""
        return self._next_due

    async def _route_events(self) -> int:
        """Batch after batch while they are full: the wake-ups of one go out while the next is routed."""
        routed = await self._route_batch()
        done = routed.handled
        while routed.handled == BATCH and done < IN_A_ROW:
            routed, _ = await both(self._route_batch(), self._wake(routed))
            done += routed.handled
        await self._wake(routed)
        return done

    async def _route_batch(self) -> Routed:
        events = await route(self._control, "route_event")
        crash_point("drain_outbox.events_routed", when=events.handled)
        return events

    async def _wake(self, routed: Routed) -> None:
        await self._keep([self._wake_up(one.promise, one.payload) for one in routed.wake_ups])
        crash_point("drain_outbox.wake_ups_kept", when=routed.wake_ups)

    async def _take(self) -> tuple[list[Promise], int]:
        """What can be kept, and how many were given up: one that nobody can read must not hold up the others."""
        sql = queries("outbox")
        rows = await self._control.hot.fetch(sql["take_promises"], BATCH, self._control.replica, HOLD)
        promises, batches, bad = list[Promise](), dict[UUID, int](), list[int]()
        for row in rows:
            try:
                if row["kind"] == "enqueue_task":
                    promises.append(self._wake_up(row["id"], row["payload"]))
                elif row["kind"] == "prepare_table":
                    promises.append(Promise(row["id"], BUFFER_QUEUE, _prepare(row["payload"])))
                else:
                    batches[UUID(msgspec.json.decode(row["payload"])["publish_id"])] = row["id"]
            except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError):
                bad.append(row["id"])
        for row in await self._control.hot.fetch(sql["buffer_messages"], list(batches)) if batches else []:
            promises.append(Promise(batches.pop(row["id"]), BUFFER_QUEUE, row["message"].encode()))
        bad += batches.values()  # those whose publish is not there
        if bad:
            await self._put_off(bad, "what it promises cannot be read, or is not there", final=True)
        return promises, len(bad)

    async def _keep(self, promises: Sequence[Promise]) -> None:
        """Act without a transaction, then mark. Kept twice is harmless: a claim is only given once."""
        by_queue: dict[str, list[Promise]] = defaultdict(list)
        for one in promises:
            if one.queue is not None:
                by_queue[one.queue].append(one)
        for queue, some in by_queue.items():
            await self._try(some, self._control.queue.publish(queue, [Outgoing(one.message) for one in some]))
        nowhere = [one.id for one in promises if one.queue is None and one.task_id is None]
        if nowhere:
            error = "its runtime is not in the settings of this Dispatcher, or its invoker is not there"
            await self._put_off(nowhere, error, delay=NOWHERE_DELAY)
        if self._functions is not None:  # which marks them when they are claimed
            self._functions.line_up({one.task_id: one.id for one in promises if one.task_id and one.function})
        here = [one for one in promises if one.task_id is not None and not one.function]
        if here:
            await self._try(here, run_in_process(self._control, [one.task_id for one in here if one.task_id]))

    async def _try(self, promises: Sequence[Promise], act: Awaitable[object]) -> None:
        ids = [one.id for one in promises]
        try:
            crash_point("drain_outbox.before_act")
            await act
        except Unavailable as away:
            await self._put_off(ids, away.message)
        else:
            crash_point("drain_outbox.before_mark")
            await self._control.hot.execute(queries("outbox")["keep_promises"], ids, self._control.replica)
            crash_point("drain_outbox.after_mark")

    async def _put_off(
        self, promises: Sequence[int], error: str, *, final: bool = False, delay: timedelta | None = None
    ) -> None:
        """What they need is away: again soon, for as long as it takes. Or, `final`: given up, for people."""
        delay = delay or timedelta(seconds=retry_delay(1, BACKOFF, 0.5))
        await self._control.hot.execute(
            queries("outbox")["put_off_promises"],
            promises,
            self._control.replica,
            [delay] * len(promises),
            [error] * len(promises),
            [final] * len(promises),
        )
        crash_point("drain_outbox.put_off")

    def _wake_up(self, promise: int, payload: str) -> Promise:
        """How a task gets to where it runs: by a message, by our own hands, by a call, or, for now, not at all."""
        told = msgspec.json.decode(payload)
        runtime, task_id = self._control.runtimes.get(told["runtime"]), UUID(told["task_id"])
        match runtime.invoker if runtime else None:
            case "in_process":
                return Promise(promise, task_id=task_id)
            case "function" if self._functions is not None:
                return Promise(promise, task_id=task_id, function=True)
            case "queue" if runtime:
                return Promise(promise, runtime.queue, msgspec.json.encode({"task_id": task_id}))
            case _:
                return Promise(promise)


async def both(one: Awaitable[A], other: Awaitable[B]) -> tuple[A, B]:
    """At the same time; neither is left alone when the other fails."""
    found = await asyncio.gather(one, other, return_exceptions=True)
    for wrong in found:
        if isinstance(wrong, BaseException):
            raise wrong
    return cast("tuple[A, B]", tuple(found))


def _prepare(payload: str) -> bytes:
    """What tells the sink of a table that is to be made or widened: which, and nothing else."""
    dataset = UUID(msgspec.json.decode(payload)["dataset_uuid"])
    return msgspec.json.encode({"kind": "buffer_table", "dataset_uuid": dataset})
