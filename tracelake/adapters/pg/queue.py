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
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import asyncpg
import structlog

from tracelake.adapters.pg.connections import OUTAGE, QueueListener, Server
from tracelake.adapters.pg.turns import Turns
from tracelake.adapters.queue_limits import SHORTEST, check_count, check_duration, check_queue, check_receive
from tracelake.errors import DatabaseUnavailable, SchemaMismatch
from tracelake.ports import (
    DeadLetter,
    Delivery,
    MessageId,
    Outgoing,
    QueueDepth,
    QueueGroup,
    Receipt,
)
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.retry import delays, sleep_unless_any

POLL_SECONDS: Final = 5.0
"""The longest wait without a query, should a notification be lost."""
LOCKED_PAUSE_SECONDS: Final = 0.02
"""Pause before the next query for a message that is due but locked by another receiver, which may release it."""
SWEEP_SECONDS: Final = 1.0
"""How often a receiver starts at the very front of a queue."""
SWEEP_MARGIN: Final = timedelta(milliseconds=100)
"""How far before its last delivery a receiver starts otherwise: longer than a publish usually takes to commit."""
SWEEP_TURNS: Final = SWEEP_MARGIN // timedelta(microseconds=1)
"""The same in turns."""
FRONT: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Before any message."""

RECEIVE: Final = """
SELECT queue, id, receipt, receives, sent_at, due_at, turn, body, looked_at, next_due
  FROM pgqueue.receive_any($1, $2, $3, $4, $5, $6, $7)
"""

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
        self._turns: dict[str, Turns] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        check_queue(queue)
        if messages:
            bodies = [message.body for message in messages]
            delays = [message.delay for message in messages]
            groups = [message.group for message in messages]
            crash_point("queue.before_publish")
            if any(groups):
                await self._publish_in_turn(queue, bodies, delays, groups)
            else:
                await self._call("SELECT pgqueue.publish($1, $2, $3)", queue, bodies, delays)
            crash_point("queue.after_publish")

    async def receive(
        self,
        queue: str | Mapping[str, int],
        *,
        max_messages: int,
        visibility: timedelta,
        wait: timedelta = timedelta(),
        end_wait: asyncio.Event | None = None,
    ) -> list[Delivery]:
        queues = {queue: max_messages} if isinstance(queue, str) else queue
        check_receive(queues, max_messages, visibility, wait)
        until = _now() + wait.total_seconds()
        if not wait:
            deliveries, _ = await self._take(queues, max_messages, visibility, until)
            return deliveries
        with self._listener.subscribe(queues) as new_message:
            wakers = [new_message, *([end_wait] if end_wait is not None else [])]
            while True:
                new_message.clear()  # before the query: a message that arrives after it must wake us
                deliveries, pause = await self._take(queues, max_messages, visibility, until)
                if deliveries or _now() >= until or (end_wait is not None and end_wait.is_set()):
                    return deliveries
                await sleep_unless_any(wakers, min(until - _now(), pause))

    async def extend(self, queue: str, receipts: Sequence[Receipt], visibility: timedelta) -> set[Receipt]:
        check_duration(visibility, "/visibility", at_least=SHORTEST)
        held = await self._settle("SELECT pgqueue.extend($1, $2, $3)", queue, receipts, visibility)
        crash_point("queue.after_extend")
        return held

    async def ack(self, queue: str, receipts: Sequence[Receipt]) -> set[Receipt]:
        crash_point("queue.before_ack")
        gone = await self._settle("SELECT pgqueue.ack($1, $2)", queue, receipts)
        crash_point("queue.after_ack")
        return gone

    async def release(self, queue: str, receipts: Sequence[Receipt], delay: timedelta = timedelta()) -> set[Receipt]:
        check_duration(delay, "/delay")
        return await self._settle("SELECT pgqueue.release($1, $2, $3)", queue, receipts, delay)

    async def depth(self, queue: str) -> QueueDepth:
        check_queue(queue)
        (row,) = await self._call("SELECT * FROM pgqueue.depth($1)", queue)
        return QueueDepth(**row)

    async def dead_letters(self, queue: str, limit: int) -> list[DeadLetter]:
        check_queue(queue)
        check_count(limit, "/limit")
        sql = "SELECT id, body, receives, sent_at, died_at, reason FROM pgqueue.list_dead_letters($1, $2)"
        return [DeadLetter(MessageId(str(number)), *rest) for number, *rest in await self._call(sql, queue, limit)]

    async def redrive(self, queue: str, ids: Sequence[MessageId] | None = None) -> int:
        check_queue(queue)
        numbers = None if ids is None else list(_numbers(ids))
        (row,) = await self._call("SELECT pgqueue.redrive($1, $2)", queue, numbers)
        return int(row[0])

    async def close(self) -> None:
        self._closing = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.close()
        await self._server.close()

    async def _publish_in_turn(
        self, queue: str, bodies: list[bytes], delays: list[timedelta], groups: list[QueueGroup | None]
    ) -> None:
        turns = self._turns.setdefault(queue, Turns())
        placed = turns.place(groups)
        sql = "SELECT pgqueue.publish_in_turn($1, $2, $3, $4, $5, $6)"
        (row,) = await self._call(sql, queue, bodies, delays, placed.bases, placed.offsets, turns.front)
        turns.published(groups, placed, row[0])

    async def _take(
        self, queues: Mapping[str, int], at_most: int, visibility: timedelta, until: float
    ) -> tuple[list[Delivery], float]:
        """What is ready, and if nothing is, how long to wait at most for something to be."""
        while True:
            names = list(queues)
            starts = [self._fronts.start(name) for name in names]
            turns, dues = [start.turn for start in starts], [start.due for start in starts]
            limits = list(queues.values()), at_most, visibility, self._max_receives
            records = await self._or_give_back(self._call(RECEIVE, names, *limits, turns, dues, until=until))
            rows = [_Received(*record) for record in records]
            if rows and rows[0].id is None:
                return [], _pause(rows[0].next_due, swept=all(start.due == FRONT for start in starts))
            crash_point("queue.after_receive", when=rows)
            alive = [row for row in rows if row.receipt is not None]
            if len(alive) < len(rows):
                _log_dead(rows)
            for name in names:
                self._fronts.delivered(name, [row for row in alive if row.queue == name])
            if alive:  # only dead ones: there may be living ones behind them
                return [_delivery(row) for row in alive], 0.0

    async def _or_give_back(self, taking: Coroutine[Any, Any, list[asyncpg.Record]]) -> list[asyncpg.Record]:
        """A receiver canceled at this moment would leave messages hidden from everybody; they are given back."""
        task = self._spawn(taking)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._spawn(self._give_back(task))
            raise

    async def _give_back(self, taking: asyncio.Task[list[asyncpg.Record]]) -> None:
        with suppress(DatabaseUnavailable):  # then they are ready again when their visibility ends
            held: defaultdict[str, list[UUID]] = defaultdict(list)
            for row in map(_Received._make, await taking):
                if row.receipt is not None:
                    held[row.queue].append(row.receipt)
            for queue, receipts in held.items():
                await self._call("SELECT pgqueue.release($1, $2, $3)", queue, receipts, timedelta())

    async def _settle(self, sql: str, queue: str, receipts: Sequence[Receipt], *more: timedelta) -> set[Receipt]:
        check_queue(queue)
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


class _Received(NamedTuple):
    """What `pgqueue.receive_any` returns for a message."""

    queue: str
    id: int | None
    """None: there is no message, and this is when there may be one."""
    receipt: UUID | None
    """None: it has become a dead letter."""
    receives: int
    sent_at: datetime
    due_at: datetime
    turn: int | None
    body: bytes
    looked_at: datetime
    next_due: timedelta | None


@dataclass(frozen=True)
class _Start:
    """Where to start in a queue: a turn, and among messages without one a moment."""

    turn: int = 0
    due: datetime = FRONT


class _Fronts:
    """Where in each queue to start looking.

    Messages leave a queue in the order of their turns, or of the moments at which they fall due, so what stands before
    the last delivery is mostly gone. Its dead index entries may still be there, when an old snapshot keeps vacuum from
    them: then every look that starts at the very front steps over all of them, and the queue becomes slower by the
    minute. A look that starts at the last delivery does not. It can miss a message that was committed late or dropped
    by another receiver, which is why there is a look at the very front every now and then.
    """

    def __init__(self) -> None:
        self._last_turn: dict[str, int] = {}
        self._last_due: dict[str, datetime] = {}
        self._next_sweep: dict[str, float] = {}

    def start(self, queue: str) -> _Start:
        if _now() < self._next_sweep.get(queue, 0.0):
            return _Start(self._last_turn.get(queue, 0), self._last_due.get(queue, FRONT))
        self._next_sweep[queue] = _now() + SWEEP_SECONDS
        return _Start()

    def delivered(self, queue: str, rows: Sequence[_Received]) -> None:
        timed = [row.due_at for row in rows if row.turn is None]
        if len(timed) < len(rows):
            self._last_turn[queue] = max(row.turn for row in rows if row.turn is not None) - SWEEP_TURNS
        if rows:  # with a turn: none of the others was due
            self._last_due[queue] = max(timed, default=rows[0].looked_at) - SWEEP_MARGIN


def _pause(next_due: timedelta | None, *, swept: bool) -> float:
    """How long to wait at most: until the next message is due, or the next query from the very front."""
    due = POLL_SECONDS if next_due is None else max(next_due.total_seconds(), LOCKED_PAUSE_SECONDS)
    return min(due, POLL_SECONDS if swept else SWEEP_SECONDS)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _delivery(row: _Received) -> Delivery:
    return Delivery(
        queue=row.queue,
        id=MessageId(str(row.id)),
        receipt=Receipt(str(row.receipt)),
        body=row.body,
        receives=row.receives,
        sent_at=row.sent_at,
    )


def _log_dead(rows: Iterable[_Received]) -> None:
    for row in rows:
        if row.receipt is None:
            log.warning("a message became a dead letter", queue=row.queue, message=row.id, receives=row.receives)


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
