"""Step 5 of one event, in Lite: the wake-up is published. Next: `worker/wrapper.py` receives it.

The `Queue` port over the functions of the schema `pgqueue`, which hold all the rules. What is added here:

- Waiting. One connection listens for all receivers; a notification wakes them within milliseconds. A receiver also
  knows when the next delayed or held message is due. Only if both fail does a slow poll find it.
- Outages. Every call is one statement, safe to repeat, and is repeated while the server is away, within bounds.
- Commits without a flush where the port allows it. `publish` and `redrive` are durable when they return; a
  delivery or an acknowledgement that is lost when the server crashes only means that the message is delivered again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

import asyncpg
import structlog

from tracelake.adapters.queue_pg_connections import OUTAGE, QueueListener, Server
from tracelake.errors import DatabaseUnavailable, InvalidRequest, SchemaMismatch
from tracelake.ports import (
    QUEUE_NAME,
    VISIBILITY_LIMIT,
    DeadLetter,
    Delivery,
    MessageId,
    Outgoing,
    QueueDepth,
    Receipt,
)
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.retry import delays, sleep_unless

LIST_LIMIT: Final = 10_000
"""The most messages or dead letters that one call returns."""

POLL_SECONDS: Final = 5.0
"""The longest wait without a query, should a notification be lost."""
LOCKED_PAUSE_SECONDS: Final = 0.02
"""Pause before the next query for a message that is due but locked by another receiver, which may release it."""
SWEEP_SECONDS: Final = 1.0
"""How often a receiver starts at the very front of a queue."""
SWEEP_MARGIN: Final = timedelta(milliseconds=100)
"""How far before its last delivery a receiver starts otherwise: longer than a publish usually takes to commit."""
SHORTEST: Final = timedelta(milliseconds=1)
FRONT: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Before any message."""

NOT_READY: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InsufficientPrivilegeError,
)
"""What asyncpg raises when the server answers, but is not set up as this code needs it."""

log = structlog.get_logger(__name__)


T = TypeVar("T")


class PgQueue:
    """The `Queue` port on Postgres. One instance per process is enough; it belongs to one event loop."""

    def __init__(
        self,
        dsn: str,
        *,
        max_receives: int = 5,
        connections: int = 4,
        retry_for: timedelta = timedelta(seconds=10),
    ) -> None:
        """Opens nothing yet. `retry_for`: how long a call is retried while the server does not answer."""
        self._max_receives = max_receives
        self._retry_for = retry_for.total_seconds()
        self._server = Server(dsn, connections)
        self._listener = QueueListener(dsn)
        self._fronts = _Fronts()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        _check_queue(queue)
        if messages:
            bodies = [message.body for message in messages]
            delays = [message.delay for message in messages]
            crash_point("queue.before_publish")
            await self._call("SELECT pgqueue.publish($1, $2, $3)", queue, bodies, delays)
            crash_point("queue.after_publish")

    async def receive(
        self, queue: str, *, max_messages: int, visibility: timedelta, wait: timedelta = timedelta()
    ) -> list[Delivery]:
        _check_queue(queue)
        _check_count(max_messages, "/max_messages")
        _check_duration(visibility, "/visibility", at_least=SHORTEST)
        _check_duration(wait, "/wait")
        until = _now() + wait.total_seconds()
        if not wait:
            return await self._take(queue, max_messages, visibility, self._fronts.start(queue), until)
        with self._listener.subscribe(queue) as new_message:
            while True:
                new_message.clear()  # before the query: a message that arrives after it must wake us
                start = self._fronts.start(queue)
                deliveries = await self._take(queue, max_messages, visibility, start, until)
                if deliveries or _now() >= until:
                    return deliveries
                await sleep_unless(new_message, min(until - _now(), await self._pause(queue, start, until)))

    async def extend(self, queue: str, receipts: Sequence[Receipt], visibility: timedelta) -> set[Receipt]:
        _check_duration(visibility, "/visibility", at_least=SHORTEST)
        held = await self._settle("SELECT pgqueue.extend($1, $2, $3)", queue, receipts, visibility)
        crash_point("queue.after_extend")
        return held

    async def ack(self, queue: str, receipts: Sequence[Receipt]) -> set[Receipt]:
        crash_point("queue.before_ack")
        gone = await self._settle("SELECT pgqueue.ack($1, $2)", queue, receipts)
        crash_point("queue.after_ack")
        return gone

    async def release(self, queue: str, receipts: Sequence[Receipt], delay: timedelta = timedelta()) -> set[Receipt]:
        _check_duration(delay, "/delay")
        return await self._settle("SELECT pgqueue.release($1, $2, $3)", queue, receipts, delay)

    async def depth(self, queue: str) -> QueueDepth:
        _check_queue(queue)
        (row,) = await self._call("SELECT * FROM pgqueue.depth($1)", queue)
        return QueueDepth(**row)

    async def dead_letters(self, queue: str, limit: int) -> list[DeadLetter]:
        _check_queue(queue)
        _check_count(limit, "/limit")
        rows = await self._call("SELECT * FROM pgqueue.list_dead_letters($1, $2)", queue, limit)
        return [_dead_letter(row) for row in rows]

    async def redrive(self, queue: str, ids: Sequence[MessageId] | None = None) -> int:
        _check_queue(queue)
        numbers = None if ids is None else list(_numbers(ids))
        (row,) = await self._call("SELECT pgqueue.redrive($1, $2)", queue, numbers)
        return int(row[0])

    async def close(self) -> None:
        self._closing = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.close()
        await self._server.close()

    async def _take(
        self, queue: str, at_most: int, visibility: timedelta, start: datetime, until: float
    ) -> list[Delivery]:
        sql = "SELECT * FROM pgqueue.receive($1, $2, $3, $4, $5)"
        while True:
            taking = self._call(sql, queue, at_most, visibility, self._max_receives, start, until=until)
            rows = await self._or_give_back(queue, taking)
            crash_point("queue.after_receive", when=rows)
            alive = [row for row in rows if row["receipt"] is not None]
            if len(alive) < len(rows):
                _log_dead(queue, rows)
            if alive:
                self._fronts.delivered(queue, max(row["due_at"] for row in alive))
            if alive or not rows:  # only dead ones: there may be living ones behind them
                return [_delivery(row) for row in alive]

    async def _or_give_back(
        self, queue: str, taking: Coroutine[Any, Any, list[asyncpg.Record]]
    ) -> list[asyncpg.Record]:
        """A receiver canceled at this moment would leave messages hidden from everybody; they are given back."""
        task = self._spawn(taking)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._spawn(self._give_back(queue, task))
            raise

    async def _give_back(self, queue: str, taking: asyncio.Task[list[asyncpg.Record]]) -> None:
        with suppress(DatabaseUnavailable):  # then they are ready again when their visibility ends
            receipts = [row["receipt"] for row in await taking if row["receipt"] is not None]
            await self._call("SELECT pgqueue.release($1, $2, $3)", queue, receipts, timedelta())

    async def _pause(self, queue: str, start: datetime, until: float) -> float:
        """How long to wait at most: until the next message is due, or the next query from the very front."""
        (row,) = await self._call("SELECT pgqueue.next_due($1, $2)", queue, start, until=until)
        due = POLL_SECONDS if row[0] is None else max(row[0].total_seconds(), LOCKED_PAUSE_SECONDS)
        return min(due, POLL_SECONDS if start == FRONT else SWEEP_SECONDS)

    async def _settle(self, sql: str, queue: str, receipts: Sequence[Receipt], *more: timedelta) -> set[Receipt]:
        _check_queue(queue)
        known = list(_uuids(receipts))
        if not known:
            return set()
        return {Receipt(str(row[0])) for row in await self._call(sql, queue, known, *more)}

    async def _call(self, sql: str, *arguments: Any, until: float = 0.0) -> list[asyncpg.Record]:
        """Runs one statement, again while the server does not answer: until `until`, and at least for `retry_for`."""
        deadline = max(until, _now() + self._retry_for)
        pauses = delays()
        while True:
            pause = next(pauses)
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._server.fetch(sql, *arguments)
            except OUTAGE as away:
                if self._closing or _now() + pause >= deadline:
                    raise _unavailable(away) from None
            except NOT_READY as refusal:
                raise _mismatch(refusal) from None
            await asyncio.sleep(pause)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Fronts:
    """Where in each queue to start looking.

    Messages leave a queue in the order in which they fall due, so what stands before the last delivery is mostly
    gone. Its dead index entries may still be there, when an old snapshot keeps vacuum from them: then every look that
    starts at the very front steps over all of them, and the queue becomes slower by the minute. A look that starts at
    the last delivery does not. It can miss a message that was committed late or dropped by another receiver, which is
    why there is a look at the very front every now and then.
    """

    def __init__(self) -> None:
        self._last_due: dict[str, datetime] = {}
        self._next_sweep: dict[str, float] = {}

    def start(self, queue: str) -> datetime:
        if _now() < self._next_sweep.get(queue, 0.0):
            return self._last_due.get(queue, FRONT)
        self._next_sweep[queue] = _now() + SWEEP_SECONDS
        return FRONT

    def delivered(self, queue: str, due_at: datetime) -> None:
        self._last_due[queue] = due_at - SWEEP_MARGIN


def _now() -> float:
    return asyncio.get_running_loop().time()


def _delivery(row: asyncpg.Record) -> Delivery:
    return Delivery(
        id=MessageId(str(row["id"])),
        receipt=Receipt(str(row["receipt"])),
        body=row["body"],
        receives=row["receives"],
        sent_at=row["sent_at"],
    )


def _dead_letter(row: asyncpg.Record) -> DeadLetter:
    return DeadLetter(
        id=MessageId(str(row["id"])),
        body=row["body"],
        receives=row["receives"],
        sent_at=row["sent_at"],
        died_at=row["died_at"],
        reason=row["reason"],
    )


def _log_dead(queue: str, rows: Iterable[asyncpg.Record]) -> None:
    for row in rows:
        if row["receipt"] is None:
            log.warning("a message became a dead letter", queue=queue, message=row["id"], receives=row["receives"])


def _uuids(receipts: Iterable[Receipt]) -> Iterator[UUID]:
    """Skips what is not a receipt of this queue."""
    for receipt in receipts:
        with suppress(ValueError):
            yield UUID(receipt)


def _numbers(ids: Iterable[MessageId]) -> Iterator[int]:
    """Skips what is not an id of this queue."""
    for name in ids:
        with suppress(ValueError):
            if 0 < int(name) < 2**63:
                yield int(name)


def _check_queue(name: str) -> None:
    if not re.fullmatch(QUEUE_NAME, name):
        raise InvalidRequest(f"{name!r} cannot be the name of a queue", where="/queue", hint=f"use {QUEUE_NAME}")


def _check_count(count: int, where: str) -> None:
    if not 1 <= count <= LIST_LIMIT:
        raise InvalidRequest(f"{count} is not between 1 and {LIST_LIMIT}", where=where)


def _check_duration(duration: timedelta, where: str, *, at_least: timedelta = timedelta()) -> None:
    if not at_least <= duration <= VISIBILITY_LIMIT:
        raise InvalidRequest(f"{duration} is not between {at_least} and {VISIBILITY_LIMIT}", where=where)


def _unavailable(away: BaseException) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"the queue's Postgres does not answer: {away or type(away).__name__}",
        hint="check that the server runs; what was published is safe",
    )


def _mismatch(refusal: asyncpg.PostgresError) -> SchemaMismatch:
    return SchemaMismatch(
        f"the queue's database is not ready for this role: {refusal}",
        where="queue.dsn",
        hint="check the DSN's role, password and database, and migrate it; `trace up` does so at every start",
    )
