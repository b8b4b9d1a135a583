"""Any sequence of queue verbs, by two processes, on a model of the queue and on a real Postgres.

Time is moved by the test: what passes in the model is taken off every moment that the queue remembers. Durations are
hundreds of seconds, so that the few that really pass change nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tracelake.adapters.pg.queue import PgQueue
from tracelake.ports import Delivery, MessageId, Outgoing, Receipt

T = TypeVar("T")

SETTINGS = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
MAX_RECEIVES = 2
HUNDREDS = st.integers(1, 9).map(lambda count: 100 * count)
DELAYS = st.just(0) | HUNDREDS
EITHER = st.integers(0, 1)


@dataclass
class Message:
    """What the model knows of a message that lives."""

    body: bytes
    visible_at: int
    receives: int = 0
    receipt: Receipt | None = None


@dataclass
class Model:
    """The entry, without a database."""

    now: int = 0
    unseen: list[Message] = field(default_factory=list)
    """Published, and never delivered: the model does not know their ids yet."""
    seen: dict[MessageId, Message] = field(default_factory=dict)
    dead: dict[MessageId, Message] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)
    """Every one that ever was."""

    def alive(self) -> list[Message]:
        return [*self.unseen, *self.seen.values()]

    def ready(self, messages: Iterable[Message]) -> list[Message]:
        return [message for message in messages if message.visible_at <= self.now]

    def deliverable(self) -> list[Message]:
        return [message for message in self.ready(self.alive()) if message.receives < MAX_RECEIVES]

    def newest(self, receipt: Receipt) -> Message | None:
        return next((message for message in self.seen.values() if message.receipt == receipt), None)

    def held(self, receipt: Receipt) -> Message | None:
        message = self.newest(receipt)
        return message if message is not None and message.visible_at > self.now else None

    def deliver(self, delivery: Delivery, visibility: int) -> None:
        if delivery.id not in self.seen:
            fresh = next(message for message in self.ready(self.unseen) if message.body == delivery.body)
            self.unseen.remove(fresh)
            self.seen[delivery.id] = fresh
        message = self.seen[delivery.id]
        assert message in self.deliverable()
        assert message.body == delivery.body
        assert delivery.receives == message.receives + 1
        assert delivery.receipt not in self.receipts
        message.receives, message.receipt, message.visible_at = (
            delivery.receives,
            delivery.receipt,
            self.now + visibility,
        )
        self.receipts.append(delivery.receipt)

    def remove(self, acked: Iterable[Receipt]) -> None:
        gone = set(acked)
        self.seen = {key: message for key, message in self.seen.items() if message.receipt not in gone}

    def bury(self, found: Iterable[MessageId]) -> None:
        for message_id in set(found) - set(self.dead):
            message = self.seen.pop(message_id)
            assert message.receives == MAX_RECEIVES
            assert message.visible_at <= self.now
            self.dead[message_id] = message


class World:
    """Two processes that use the queue, and a clock that the test moves. It outlives the runs."""

    def __init__(self, dsn: str) -> None:
        self.loop = asyncio.Runner()
        self.processes = [PgQueue(dsn, max_receives=MAX_RECEIVES, connections=1) for _ in range(2)]
        self.clock: asyncpg.Connection[asyncpg.Record] = self.run(connect(dsn))
        self.names = (f"law-{number}" for number in itertools.count())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    def pass_time(self, queue: str, passed: timedelta) -> None:
        sql = "UPDATE pgqueue.messages SET visible_at = visible_at - $2::interval WHERE queue = $1"
        self.run(self.clock.execute(sql, queue, passed))
        for process in self.processes:
            if queue in process._fronts._last_due:
                process._fronts._last_due[queue] -= passed

    def close(self) -> None:
        for process in self.processes:
            self.run(process.close())
        self.run(self.clock.close())
        self.loop.close()


class QueueMachine(RuleBasedStateMachine):
    """One run, in a queue of its own."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.processes = world.processes
        self.run = world.run
        self.world = world
        self.name = next(world.names)
        self.model = Model()
        self.bodies = itertools.count()

    @rule(who=EITHER, delays=st.lists(DELAYS, min_size=1, max_size=4))
    def publish(self, who: int, delays: list[int]) -> None:
        made = [Message(b"%d" % next(self.bodies), self.model.now + delay) for delay in delays]
        sent = [Outgoing(m.body, timedelta(seconds=delay)) for m, delay in zip(made, delays, strict=True)]
        self.run(self.processes[who].publish(self.name, sent))
        self.model.unseen += made

    @rule(who=EITHER, at_most=st.integers(1, 5), visibility=HUNDREDS)
    def receive(self, who: int, at_most: int, visibility: int) -> None:
        possible = len(self.model.deliverable())
        hold = timedelta(seconds=visibility)
        deliveries = self.run(self.processes[who].receive(self.name, max_messages=at_most, visibility=hold))
        assert len(deliveries) <= at_most
        assert bool(deliveries) == bool(possible)
        assert len({delivery.id for delivery in deliveries}) == len(deliveries)
        self.model.bury(letter.id for letter in self.run(self.processes[who].dead_letters(self.name, 1000)))
        for delivery in deliveries:
            self.model.deliver(delivery, visibility)

    @precondition(lambda self: self.model.receipts)
    @rule(who=EITHER, data=st.data())
    def ack(self, who: int, data: st.DataObject) -> None:
        chosen = self.choose(data)
        counted = {receipt for receipt in chosen if self.model.newest(receipt)}
        assert self.run(self.processes[who].ack(self.name, chosen)) == counted
        self.model.remove(counted)

    @precondition(lambda self: self.model.receipts)
    @rule(who=EITHER, data=st.data(), visibility=HUNDREDS)
    def extend(self, who: int, data: st.DataObject, visibility: int) -> None:
        chosen = self.choose(data)
        held = {receipt: message for receipt in chosen if (message := self.model.held(receipt))}
        hold = timedelta(seconds=visibility)
        assert self.run(self.processes[who].extend(self.name, chosen, hold)) == set(held)
        for message in held.values():
            message.visible_at = self.model.now + visibility

    @precondition(lambda self: self.model.receipts)
    @rule(who=EITHER, data=st.data(), delay=DELAYS)
    def release(self, who: int, data: st.DataObject, delay: int) -> None:
        chosen = self.choose(data)
        held = {receipt: message for receipt in chosen if (message := self.model.held(receipt))}
        assert self.run(self.processes[who].release(self.name, chosen, timedelta(seconds=delay))) == set(held)
        for message in held.values():
            message.visible_at, message.receipt = self.model.now + delay, None

    @precondition(lambda self: self.model.dead)
    @rule(who=EITHER, data=st.data())
    def redrive(self, who: int, data: st.DataObject) -> None:
        chosen = data.draw(st.none() | st.lists(st.sampled_from(sorted(self.model.dead)), unique=True))
        risen = sorted(self.model.dead) if chosen is None else chosen
        assert self.run(self.processes[who].redrive(self.name, chosen)) == len(risen)
        for message_id in risen:
            self.model.seen[message_id] = Message(self.model.dead.pop(message_id).body, self.model.now)

    @rule(seconds=HUNDREDS)
    def pass_time(self, seconds: int) -> None:
        self.model.now += seconds
        self.world.pass_time(self.name, timedelta(seconds=seconds))

    @rule(who=EITHER, at_most=st.integers(1, 5))
    def receive_and_drop(self, who: int, at_most: int) -> None:
        """What a process does that dies: its messages come again, until they have come too often."""
        self.receive(who, at_most, 100)
        self.pass_time(100)

    @rule(who=EITHER)
    def drain(self, who: int) -> None:
        """Whatever happened before: what lives can be received and acknowledged, all of it."""
        self.pass_time(1000)
        while self.model.deliverable():
            self.receive(who, 5, 100)
        held = [
            message.receipt for message in self.model.alive() if message.receipt and message.visible_at > self.model.now
        ]
        assert self.run(self.processes[who].ack(self.name, held)) == set(held)
        self.model.remove(held)
        assert all(message.receives == MAX_RECEIVES for message in self.model.alive())

    @invariant()
    def depth_agrees(self) -> None:
        later = [message for message in self.model.alive() if message.visible_at > self.model.now]
        depth = self.run(self.processes[0].depth(self.name))
        assert depth.ready == len(self.model.ready(self.model.alive()))
        assert depth.in_flight == sum(message.receipt is not None for message in later)
        assert depth.delayed == sum(message.receipt is None for message in later)
        assert depth.dead == len(self.model.dead)
        assert (depth.oldest_age_seconds > 0) == (depth.ready > 0)

    def choose(self, data: st.DataObject) -> list[Receipt]:
        return data.draw(st.lists(st.sampled_from(self.model.receipts), min_size=1, max_size=4, unique=True))


def test_the_queue_keeps_its_guarantees_in_any_order_of_events(queue_db: str) -> None:
    world = World(queue_db)

    class Machine(QueueMachine):
        def __init__(self) -> None:
            super().__init__(world)

    try:
        run_state_machine_as_test(Machine, settings=SETTINGS)
    finally:
        world.close()


async def connect(dsn: str) -> asyncpg.Connection[asyncpg.Record]:
    return await asyncpg.connect(dsn)
