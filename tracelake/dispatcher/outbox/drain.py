"""Step 3 of one event: the outbox is drained. Routing is one statement; the other kinds are taken, acted on, marked.

Next: `events/route.py`, then `outbox/dispatch.py` and the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar, cast
from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.events.route import BATCH, HOLD, Routed, Router
from tracelake.dispatcher.outbox.dispatch import EntryDispatcher, OutboxEntry, WakeUp
from tracelake.dispatcher.outbox.wake_ups import WakeUps
from tracelake.domain.flow.tiers import BUFFER_QUEUE
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Row, fetch_column, fetch_row, fetch_rows, queries

A = TypeVar("A")
B = TypeVar("B")

IN_A_ROW: Final = 10 * BATCH
"""How many events are routed before the other entries have their turn."""
ENTRIES: Final = 500
"""How many of those are taken at once."""


class Look(Row, frozen=True):
    """What there is to do besides routing events."""

    invalidations: bool
    entries: bool
    waiting: bool
    next_due: float | None


class TakenEntry(Row, frozen=True):
    id: int
    org_id: UUID
    kind: str
    payload: str


class PublishMessage(Row, frozen=True):
    id: UUID
    org_id: UUID
    dataset_uuid: UUID
    message: str


class Drain:
    """One replica's share of the outbox; any number of replicas drain it together."""

    def __init__(self, dispatcher: EntryDispatcher, router: Router, wake_ups: WakeUps | None) -> None:
        self._dispatcher = dispatcher
        self._database = dispatcher.database
        self._router = router
        self._wake_ups = wake_ups
        self._next_due: float | None = None

    async def once(self) -> int:
        done = await self._dispatch_local() + await self._route_events()
        seen = await fetch_row(self._database, queries("outbox")["look"], Look)
        self._next_due = seen.next_due
        if seen.invalidations:
            invalidations = await self._router.route("route_invalidation")
            crash_point("drain_outbox.invalidations_routed", when=invalidations.handled)
            await self._wake(invalidations)
            done += invalidations.handled
        if seen.waiting:
            woken = await give_slots(self._database)
            crash_point("drain_outbox.slots_given", when=woken)
            done += woken
        if seen.entries or done:  # what was done may have written more entries
            taken, given_up = await self._take()
            crash_point("drain_outbox.entries_taken", when=taken)
            await self._dispatcher.dispatch(taken)
            done += len(taken) + given_up
        return done

    async def next_due(self) -> float | None:
        """As the last look saw it. It is called when that look found nothing to do, so nothing has changed since."""
        return self._next_due

    async def _dispatch_local(self) -> int:
        """Wake-ups of this replica that `outbox/wake_ups.py` leaves to the drain."""
        wake_ups = self._wake_ups.take_all() if self._wake_ups else []
        await self._dispatch_wake_ups(wake_ups)
        return len(wake_ups)

    async def _route_events(self) -> int:
        """Batch after batch while they are full; the wake-ups of one go out while the next is routed.

        Between them the first events of each dataset: none waits until a flood of another has been routed.
        """
        oldest = routed = await self._route_batch()
        done = routed.handled
        while oldest.handled == BATCH and done < IN_A_ROW:
            in_turn, _ = await both(self._route_batch(in_turn=True), self._wake(routed))
            oldest, _ = await both(self._route_batch(), self._wake(in_turn))
            routed, done = oldest, done + in_turn.handled + oldest.handled
        await self._wake(routed)
        return done

    async def _route_batch(self, *, in_turn: bool = False) -> Routed:
        events = await self._router.route("route_event", in_turn=in_turn)
        crash_point("drain_outbox.events_routed", when=events.handled)
        return events

    async def _wake(self, routed: Routed) -> None:
        await self._dispatch_wake_ups(routed.wake_ups)
        crash_point("drain_outbox.wake_ups_published", when=routed.wake_ups)

    async def _dispatch_wake_ups(self, wake_ups: Sequence[WakeUp]) -> None:
        await self._dispatcher.dispatch([self._dispatcher.entry_of(wake_up) for wake_up in wake_ups])

    async def _take(self) -> tuple[list[OutboxEntry], int]:
        """Entries to dispatch, and how many were given up: one that cannot be read must not block the others."""
        sql, replica = queries("outbox"), self._dispatcher.replica
        taken = await fetch_rows(self._database, sql["take_entries"], TakenEntry, ENTRIES, replica, HOLD)
        entries, batches, bad = list[OutboxEntry](), dict[UUID, int](), list[int]()
        for entry in taken:
            try:
                if entry.kind == "publish_buffer":
                    batches[UUID(msgspec.json.decode(entry.payload)["publish_id"])] = entry.id
                else:
                    entries.append(self._read(entry))
            except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError):
                bad.append(entry.id)
        if batches:
            found = await fetch_rows(self._database, sql["buffer_messages"], PublishMessage, list(batches))
            entries += [
                _for_sink(batches.pop(row.id), row.org_id, row.dataset_uuid, row.message.encode()) for row in found
            ]
        bad += batches.values()  # their publications do not exist
        if bad:
            error = "the payload cannot be read, or its subject does not exist"
            await self._dispatcher.postpone(bad, error, final=True)
        return entries, len(bad)

    def _read(self, entry: TakenEntry) -> OutboxEntry:
        match entry.kind:
            case "enqueue_task":
                return self._dispatcher.entry_of(WakeUp(entry.id, entry.payload))
            case "prepare_table":
                return _id_for_sink(entry, "buffer_table", "dataset_uuid")
            case "notify_failure":
                return _id_for_sink(entry, "failed_task", "task_id")
            case kind:
                raise ValueError(kind)


async def give_slots(pool: asyncpg.Pool) -> int:
    """Wakes tasks that wait for a slot of their job, operator, runtime or organisation, and returns how many.

    Limits and jobs are locked by statements before the one that counts their slots.
    """
    sql = queries("route")
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(sql["lock_limits"])
        jobs = await fetch_column(connection, sql["lock_slots"])
        return int(await connection.fetchval(sql["wake_waiting"], jobs)) if jobs else 0


async def both(awaitable: Awaitable[A], other: Awaitable[B]) -> tuple[A, B]:
    """At the same time; neither is left running when the other fails."""
    results = await asyncio.gather(awaitable, other, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("tuple[A, B]", tuple(results))


def _id_for_sink(entry: TakenEntry, kind: str, field: str) -> OutboxEntry:
    """The id of a table or a task."""
    subject = UUID(msgspec.json.decode(entry.payload)[field])
    message = msgspec.json.encode({"kind": kind, "org_id": entry.org_id, field: subject})
    return _for_sink(entry.id, entry.org_id, subject, message)


def _for_sink(entry: int, org: UUID, subject: UUID, message: bytes) -> OutboxEntry:
    """Organisations take turns at the sink, and within one its datasets."""
    return OutboxEntry(entry, BUFFER_QUEUE, message, (str(org), str(subject)))
