"""A receiver that waits is woken, shares with others, and takes turns between groups, on every adapter."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial

import pytest

from tests.support.queues import (
    HOUR,
    PLENTY,
    Backend,
    closing,
    drain,
    outgoing,
    receive_message,
    take_all,
)
from tests.support.waiting import SECONDS, until
from tracelake.adapters.pg import queue as queue_pg
from tracelake.ports import (
    Delivery,
    Outgoing,
    Queue,
    QueueDepth,
)

pytestmark = pytest.mark.anyio


async def test_two_receivers_share_without_overlap(backend: Backend, queue: Queue) -> None:
    bodies = {b"%d" % number for number in range(400 if backend.adapter == "pgqueue" else 100)}
    await queue.publish("q", outgoing(*bodies))
    async with closing(backend.open()) as other:
        halves = await asyncio.gather(*(take_all(receiver) for receiver in (queue, other, queue, other)))
    taken = [delivery.body for half in halves for delivery in half]
    assert set(taken) == bodies
    if backend.adapter == "pgqueue":  # standard queues of SQS may deliver a message twice
        assert len(taken) == len(bodies)


async def test_a_waiting_receiver_is_woken_by_a_publish(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend.adapter == "pgqueue":
        monkeypatch.setattr(queue_pg, "POLL_SECONDS", HOUR.total_seconds())
        monkeypatch.setattr(queue_pg, "SWEEP_SECONDS", HOUR.total_seconds())
    async with closing(backend.open()) as publisher:
        for number in range(5):
            waiting = asyncio.create_task(receive_message(queue))
            await until(backend.waits, "the receiver waits")
            assert not waiting.done()
            await publisher.publish("q", outgoing(b"%d" % number))
            delivery = await asyncio.wait_for(waiting, PLENTY.total_seconds())
            assert delivery.body == b"%d" % number
            await queue.ack("q", [delivery.receipt])


async def test_a_waiting_receiver_is_woken_when_a_message_falls_due(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend.adapter == "pgqueue":
        monkeypatch.setattr(queue_pg, "POLL_SECONDS", HOUR.total_seconds())
        monkeypatch.setattr(queue_pg, "SWEEP_SECONDS", HOUR.total_seconds())
    await queue.publish("q", [Outgoing(b"delayed", delay=4 * backend.tick)])
    delayed = await receive_message(queue, visibility=4 * backend.tick)
    again = await receive_message(queue)
    assert (again.id, again.receives) == (delayed.id, 2)


async def test_every_waiting_receiver_gets_its_message(backend: Backend, queue: Queue) -> None:
    async with closing(backend.open()) as other:
        waiting = [asyncio.create_task(receive_message(receiver)) for receiver in (queue, other, queue, other)]
        await until(backend.waits, "the receiver waits")
        await queue.publish("q", outgoing(b"0", b"1"))
        await other.publish("q", outgoing(b"2", b"3"))
        deliveries = await asyncio.wait_for(asyncio.gather(*waiting), PLENTY.total_seconds())
    assert sorted(delivery.body for delivery in deliveries) == [b"0", b"1", b"2", b"3"]


async def test_a_wait_for_nothing_ends_empty(backend: Backend, queue: Queue) -> None:
    assert await queue.receive("q", max_messages=1, visibility=HOUR, wait=2 * backend.tick) == []


async def test_canceling_a_receive_loses_nothing(backend: Backend, queue: Queue) -> None:
    # pgqueue gives back at once what a canceled receive had taken; elsewhere it comes when its visibility ends.
    visibility = HOUR if backend.adapter == "pgqueue" else backend.tick
    for turns in range(40):
        waiting = asyncio.create_task(receive_message(queue, visibility=visibility))
        publishing = asyncio.create_task(queue.publish("q", outgoing(b"%d" % turns)))
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns % 2:
            await publishing
        waiting.cancel()
        done = (await asyncio.gather(waiting, return_exceptions=True))[0]
        await publishing
        delivery = done if isinstance(done, Delivery) else await asyncio.wait_for(receive_message(queue), SECONDS)
        assert delivery.body == b"%d" % turns
        assert await queue.ack("q", [delivery.receipt]) == {delivery.receipt}


async def test_a_closed_queue_leaves_nothing_behind(backend: Backend) -> None:
    before = asyncio.all_tasks()
    queue = backend.open()
    waiting = asyncio.create_task(receive_message(queue))
    await until(backend.waits, "the receiver waits")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await queue.close()
    assert asyncio.all_tasks() == before
    assert not await backend.waits()
    await queue.close()  # twice is not an error


async def test_every_message_of_every_group_is_delivered(backend: Backend, queue: Queue) -> None:
    in_a_group = 20 if backend.adapter == "pgqueue" else 5  # three requests to moto for each ten: it is slow
    sent = {b"%d/%d/%d" % key for key in itertools.product(range(7), range(3), range(in_a_group))}
    groups = {body: tuple(body.decode().split("/")[:2]) for body in sent}
    bodies = sorted(sent)
    for start in range(0, len(bodies), 33):
        batch = bodies[start : start + 33]
        await queue.publish("q", [Outgoing(body, group=(groups[body][0], groups[body][1])) for body in batch])
    assert {delivery.body for delivery in await drain(queue, len(sent))} == sent
    assert await queue.depth("q") == QueueDepth(0, 0, 0, 0, 0)


async def test_several_queues_are_received_in_the_order_given_and_within_their_limits(queue: Queue) -> None:
    await queue.publish("first", outgoing(*([b"first"] * 3)))
    await queue.publish("second", outgoing(*([b"second"] * 10)))
    found = await queue.receive({"first": 2, "second": 10}, max_messages=5, visibility=HOUR)
    assert sorted((delivery.queue, delivery.body) for delivery in found) == [
        *[("first", b"first")] * 2,
        *[("second", b"second")] * 3,
    ]
    for delivery in found:
        assert await queue.ack(delivery.queue, [delivery.receipt]) == {delivery.receipt}
    found = await queue.receive({"second": 1, "first": 10}, max_messages=5, visibility=HOUR)
    assert sorted(delivery.body for delivery in found) == [b"first", b"second"]


async def test_a_wait_for_several_queues_ends_with_a_message_in_any(queue: Queue, backend: Backend) -> None:
    waiting = asyncio.create_task(queue.receive({"a": 5, "b": 5}, max_messages=5, visibility=HOUR, wait=PLENTY))
    await until(backend.waits, "it waits")
    await queue.publish("b", outgoing(b"here"))
    assert [(delivery.queue, delivery.body) for delivery in await waiting] == [("b", b"here")]


async def test_a_wait_is_ended_from_outside_and_nothing_is_taken_back(queue: Queue, backend: Backend) -> None:
    end = asyncio.Event()
    receive = partial(queue.receive, "q", max_messages=1, visibility=HOUR, wait=PLENTY, end_wait=end)
    waiting = asyncio.create_task(receive())
    await until(backend.waits, "it waits")
    end.set()
    assert await waiting == []
    await queue.publish("q", outgoing(b"ready"))
    assert [(delivery.body, delivery.receives) for delivery in await receive()] == [(b"ready", 1)]


async def test_a_group_with_few_messages_does_not_wait_for_one_with_many(fair_queue: Queue) -> None:
    await fair_queue.publish("q", [Outgoing(b"many %d" % number, group=("many", "job")) for number in range(300)])
    for _ in range(3):  # some are received before the others come
        await take(fair_queue, 10)
    await fair_queue.publish("q", [Outgoing(b"few %d" % number, group=("few", "job")) for number in range(3)])
    received = [await take(fair_queue, 1) for _ in range(8)]
    assert sum(body.startswith(b"few") for (body,) in received) == 3


async def test_groups_with_many_messages_take_turns(fair_queue: Queue) -> None:
    for name in ("a", "b", "c"):
        await fair_queue.publish("q", [Outgoing(name.encode(), group=(name, "job")) for _ in range(100)])
    received = [body for _ in range(9) for body in await take(fair_queue, 10)]
    for body in (b"a", b"b", b"c"):
        assert 27 <= received.count(body) <= 33


async def test_the_jobs_of_a_group_take_turns_and_share_its_turn(fair_queue: Queue) -> None:
    jobs = [f"job {number % 4}" for number in range(200)]
    await fair_queue.publish("q", [Outgoing(job.encode(), group=("busy", job)) for job in jobs])
    await fair_queue.publish("q", [Outgoing(b"late", group=("busy", "late")) for _ in range(10)])
    await fair_queue.publish("q", [Outgoing(b"other", group=("other", "job")) for _ in range(100)])
    received = [body for _ in range(10) for body in await take(fair_queue, 10)]
    assert 35 <= received.count(b"other") <= 50, "four jobs of one organisation do not have four turns"
    assert received.count(b"late") >= 5, "a job that comes later does not wait for those before"
    assert all(received.count(b"job %d" % number) >= 5 for number in range(4))


async def take(queue: Queue, count: int) -> list[bytes]:
    """The bodies of so many messages at most, acknowledged."""
    found = await queue.receive("q", max_messages=count, visibility=HOUR)
    await queue.ack("q", [delivery.receipt for delivery in found])
    return [delivery.body for delivery in found]
