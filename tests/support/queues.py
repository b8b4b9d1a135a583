"""Queues under test: each adapter over its server, and how tests publish and receive."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import psycopg

from tests.support.waiting import SECONDS
from tracelake.adapters.pg.queue import PgQueue
from tracelake.adapters.sqs.queue import SqsQueue
from tracelake.ports import Delivery, Outgoing, Queue
from tracelake.settings import QueueSettings

HOUR = timedelta(hours=1)
PLENTY = timedelta(seconds=SECONDS)
"""A wait that only a defect makes last."""


@dataclass(frozen=True)
class Backend:
    """One adapter under test."""

    adapter: str
    tick: timedelta
    """The shortest duration that the adapter distinguishes from none."""
    soon: timedelta
    """Short enough to wait for, long enough for a few calls on a busy machine."""
    open: Callable[..., Queue]
    """Another instance over the same queues; takes `max_receives`."""
    waits: Callable[[], Awaitable[bool]]
    """Whether a receiver has looked, found nothing, and waits."""


def pgqueue(admin_dsn: str, dsn: str) -> Backend:
    async def waits() -> bool:
        with psycopg.connect(admin_dsn) as admin:
            last = admin.execute(
                "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'"
            ).fetchall()
        return any("receive_any" in query for (query,) in last) and any("LISTEN" in query for (query,) in last)

    def opened(max_receives: int = 5) -> Queue:
        return PgQueue(dsn, max_receives=max_receives)

    tick, soon = timedelta(milliseconds=50), timedelta(seconds=2)
    return Backend(adapter="pgqueue", tick=tick, soon=soon, open=opened, waits=waits)


def sqs(endpoint: str) -> Backend:
    """Over queues of its own. moto answers a request that waits though its client is gone: requests wait for 1 s."""
    settings, made = sqs_settings(endpoint), list[SqsQueue]()

    async def waits() -> bool:
        return any(queue._polls for queue in made)

    def opened(max_receives: int = 5) -> Queue:
        made.append(SqsQueue(settings, max_receives=max_receives))
        return made[-1]

    tick, soon = timedelta(seconds=1), timedelta(seconds=4)
    return Backend(adapter="sqs", tick=tick, soon=soon, open=opened, waits=waits)


def sqs_settings(endpoint: str, *, create: bool = True) -> QueueSettings:
    """With a prefix that no other test has."""
    return QueueSettings(
        backend="sqs",
        endpoint=endpoint,
        cloudwatch_endpoint=endpoint,
        prefix=f"t{secrets.token_hex(4)}-",
        create=create,
        poll_seconds=1,
    )


@asynccontextmanager
async def closing(queue: Queue) -> AsyncIterator[Queue]:
    try:
        yield queue
    finally:
        await queue.close()


def outgoing(*bodies: bytes) -> list[Outgoing]:
    return [Outgoing(body) for body in bodies]


async def look(queue: Queue, name: str = "q") -> list[Delivery]:
    """What is ready now."""
    return await queue.receive(name, max_messages=10, visibility=HOUR)


async def receive_message(queue: Queue, name: str = "q", *, visibility: timedelta = HOUR) -> Delivery:
    deliveries = await queue.receive(name, max_messages=1, visibility=visibility, wait=PLENTY)
    assert len(deliveries) == 1
    return deliveries[0]


async def release_message(queue: Queue, name: str = "q") -> Delivery:
    delivery = await receive_message(queue, name)
    assert await queue.release(name, [delivery.receipt]) == {delivery.receipt}
    return delivery


async def drain(queue: Queue, count: int) -> list[Delivery]:
    """Receive and acknowledge until there have been so many."""
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        batch = await queue.receive("q", max_messages=10, visibility=HOUR, wait=PLENTY)
        receipts = {delivery.receipt for delivery in batch}
        assert await queue.ack("q", sorted(receipts)) == receipts
        deliveries += batch
    return deliveries


async def take_all(queue: Queue) -> list[Delivery]:
    """Receive until there is nothing."""
    deliveries: list[Delivery] = []
    while batch := await queue.receive("q", max_messages=7, visibility=HOUR):
        deliveries += batch
    return deliveries


async def is_ready(queue: Queue) -> bool:
    return (await queue.depth("q")).ready == 1
