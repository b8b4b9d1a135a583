"""Step 3 of one event: what the outbox owes is done. Routing is one statement; the rest is take, act, mark.

Next: `events/route.py`, then `outbox/dispatch.py` and the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar, cast
from uuid import UUID

import msgspec

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.events.route import BATCH, HOLD, Routed, route
from tracelake.dispatcher.outbox.dispatch import EntryDispatcher, OutboxEntry
from tracelake.dispatcher.outbox.local_wake_ups import WakeUp
from tracelake.dispatcher.runtimes.call_functions import CallFunctions
from tracelake.dispatcher.tasks.wake_waiting import give_slots
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

A = TypeVar("A")
B = TypeVar("B")

BUFFER_QUEUE = "buffer"
IN_A_ROW = 10 * BATCH
"""So many events are routed before the other entries have their turn."""


class Drain:
    """One replica's share of the outbox; any number of replicas drain it together."""

    def __init__(self, control: Control, functions: CallFunctions | None = None) -> None:
        self._control = control
        self._keeper = EntryDispatcher(control, functions)
        self._next_due: float | None = None

    async def once(self) -> int:
        done = await self._keep_handed() + await self._route_events()
        seen = await self._control.hot.fetchrow(queries("outbox")["look"])
        assert seen is not None  # noqa: S101 - a SELECT of scalars always has its row
        self._next_due = seen["next_due"]
        if seen["invalidations"]:
            invalidations = await route(self._control, "route_invalidation")
            crash_point("drain_outbox.invalidations_routed", when=invalidations.handled)
            await self._wake(invalidations)
            done += invalidations.handled
        if seen["waiting"]:
            woken = await give_slots(self._control)
            crash_point("drain_outbox.slots_given", when=woken)
            done += woken
        if seen["entries"] or done:  # what was done may owe more
            taken, given_up = await self._take()
            crash_point("drain_outbox.promises_taken", when=taken)
            await self._keeper.keep(taken)
            done += len(taken) + given_up
        return done

    async def next_due(self) -> float | None:
        """As the last look found it: when it is asked, that look found nothing to do, so nothing has changed since."""
        return self._next_due

    async def _keep_handed(self) -> int:
        """What `outbox/publish_wake_ups.py` leaves to us, and all that was handed on where that loop does not run."""
        handed = self._control.wake_ups.take_all() if self._control.wake_ups else []
        await self._keeper.keep([self._keeper.wake_up(item) for item in handed])
        return len(handed)

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
        await self._keeper.keep([self._keeper.wake_up(wake_up) for wake_up in routed.wake_ups])
        crash_point("drain_outbox.wake_ups_kept", when=routed.wake_ups)

    async def _take(self) -> tuple[list[OutboxEntry], int]:
        """What can be kept, and how many were given up: one that nobody can read must not hold up the others."""
        sql = queries("outbox")
        rows = await self._control.hot.fetch(sql["take_entries"], BATCH, self._control.replica, HOLD)
        entries, batches, bad = list[OutboxEntry](), dict[UUID, int](), list[int]()
        for row in rows:
            try:
                if row["kind"] == "enqueue_task":
                    entries.append(self._keeper.wake_up(WakeUp(row["id"], row["payload"])))
                elif row["kind"] == "prepare_table":
                    entries.append(OutboxEntry(row["id"], BUFFER_QUEUE, _prepare(row["payload"])))
                elif row["kind"] == "notify_failure":
                    entries.append(OutboxEntry(row["id"], BUFFER_QUEUE, _failed_task(row["payload"])))
                else:
                    batches[UUID(msgspec.json.decode(row["payload"])["publish_id"])] = row["id"]
            except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError):
                bad.append(row["id"])
        for row in await self._control.hot.fetch(sql["buffer_messages"], list(batches)) if batches else []:
            entries.append(OutboxEntry(batches.pop(row["id"]), BUFFER_QUEUE, row["message"].encode()))
        bad += batches.values()  # those whose publish is not there
        if bad:
            await self._keeper.put_off(bad, "what it entries cannot be read, or is not there", final=True)
        return entries, len(bad)


async def both(awaitable: Awaitable[A], other: Awaitable[B]) -> tuple[A, B]:
    """At the same time; neither is left alone when the other fails."""
    found = await asyncio.gather(awaitable, other, return_exceptions=True)
    for wrong in found:
        if isinstance(wrong, BaseException):
            raise wrong
    return cast("tuple[A, B]", tuple(found))


def _failed_task(payload: str) -> bytes:
    """What tells the sink of a task that has failed for good: which, and nothing else."""
    return msgspec.json.encode({"kind": "failed_task", "task_id": UUID(msgspec.json.decode(payload)["task_id"])})


def _prepare(payload: str) -> bytes:
    """What tells the sink of a table that is to be made or widened: which, and nothing else."""
    dataset = UUID(msgspec.json.decode(payload)["dataset_uuid"])
    return msgspec.json.encode({"kind": "buffer_table", "dataset_uuid": dataset})
