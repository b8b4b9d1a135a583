"""The guarantees of the `Queue` port, proven on every adapter: SQS is moto, over HTTP.

Nothing here asserts how long something took. That a message is invisible is shown by another one that fell due later
and came first; that a wait was woken, by switching off everything but the waking.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from tests.support.queues import (
    HOUR,
    PLENTY,
    Backend,
    closing,
    drain,
    is_ready,
    look,
    outgoing,
    pgqueue,
    receive_message,
    release_message,
    sqs,
    take_all,
)
from tests.support.waiting import SECONDS, until
from tracelake.adapters.pg import queue as queue_pg
from tracelake.errors import InvalidRequest
from tracelake.ports import (
    BODY_LIMIT_BYTES,
    DELAY_LIMIT,
    Delivery,
    MessageId,
    Outgoing,
    Queue,
    QueueDepth,
    Receipt,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["pgqueue", "sqs"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return make_backend(request)


@pytest.fixture(params=["pgqueue"])
def fair_backend(request: pytest.FixtureRequest) -> Backend:
    """Those in which groups can be seen to take turns. SQS has fair queues, but moto has not."""
    return make_backend(request)


def make_backend(request: pytest.FixtureRequest) -> Backend:
    made: dict[str, Callable[[], Backend]] = {
        "pgqueue": lambda: pgqueue(request.getfixturevalue("queue_db"), request.getfixturevalue("queue_role")),
        "sqs": lambda: sqs(request.getfixturevalue("moto")),
    }
    return made[request.param]()


@pytest.fixture
async def queue(backend: Backend) -> AsyncIterator[Queue]:
    async with closing(backend.open()) as opened:
        yield opened


@pytest.fixture
async def fair_queue(fair_backend: Backend) -> AsyncIterator[Queue]:
    async with closing(fair_backend.open()) as opened:
        yield opened


async def test_what_is_published_is_delivered_and_ends_with_its_ack(queue: Queue) -> None:
    bodies = {b"message %d" % number for number in range(250)}
    await queue.publish("q", outgoing(*bodies))
    deliveries = await drain(queue, len(bodies))
    assert {delivery.body for delivery in deliveries} == bodies
    assert len({delivery.id for delivery in deliveries}) == len(bodies)
    assert {delivery.receives for delivery in deliveries} == {1}
    assert await queue.depth("q") == QueueDepth(0, 0, 0, 0, 0)
    assert await look(queue) == []


async def test_queues_do_not_mix(queue: Queue) -> None:
    await queue.publish("a", outgoing(b"for a"))
    await queue.publish("b", outgoing(b"for b"))
    assert [delivery.body for delivery in await look(queue, "b")] == [b"for b"]
    (delivery,) = await look(queue, "a")
    assert delivery.body == b"for a"
    assert await queue.ack("b", [delivery.receipt]) == set()
    assert await queue.ack("a", [delivery.receipt]) == {delivery.receipt}


@pytest.mark.parametrize(
    "body",
    [
        b"\0",
        bytes(range(256)),
        b"\xff\xfe\x00\x80 not text",
        '{"task_id": "Ünï↯😀", "nul": "\\u0000"}'.encode(),
        "\N{ZERO WIDTH JOINER}\r\n\t\x1b ]]> <&> ' \"".encode(),
        b"x" * (BODY_LIMIT_BYTES - 1),
    ],
    ids=["nul", "every byte", "not text", "unicode", "markup", "largest"],
)
async def test_a_body_arrives_byte_for_byte(queue: Queue, body: bytes) -> None:
    await queue.publish("q", outgoing(body))
    assert (await receive_message(queue)).body == body


@pytest.mark.parametrize("size", [0, BODY_LIMIT_BYTES, 4 * BODY_LIMIT_BYTES])
async def test_a_body_without_bytes_or_with_too_many_is_refused(queue: Queue, size: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await queue.publish("q", [Outgoing(b"fits"), Outgoing(b"x" * size)])
    assert refused.value.where == "/body"
    assert not refused.value.retryable
    assert (await queue.depth("q")).ready == 0


async def test_a_receive_gives_no_more_than_it_was_asked_for(queue: Queue) -> None:
    await queue.publish("q", outgoing(*(b"%d" % number for number in range(30))))
    seen: set[MessageId] = set()
    for size in (1, 3, 10):
        deliveries = await queue.receive("q", max_messages=size, visibility=HOUR, wait=PLENTY)
        assert 1 <= len(deliveries) <= size
        assert seen.isdisjoint(delivery.id for delivery in deliveries)
        seen |= {delivery.id for delivery in deliveries}


async def test_an_empty_batch_is_nothing_to_do(queue: Queue) -> None:
    await queue.publish("q", [])
    assert await queue.ack("q", []) == set()
    assert await queue.extend("q", [], HOUR) == set()
    assert await queue.release("q", []) == set()
    assert await queue.redrive("q", []) == 0


async def test_what_cannot_be_meant_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidRequest, match="delayed"):
        Outgoing(b"x", delay=DELAY_LIMIT + timedelta(seconds=1))
    with pytest.raises(InvalidRequest, match="delayed"):
        Outgoing(b"x", delay=timedelta(seconds=-1))
    for name in ("", "a b", "a/b", "ü", "x" * 65, "x\n"):
        with pytest.raises(InvalidRequest, match="name of a queue"):
            await queue.publish(name, outgoing(b"x"))
    for count in (0, -1, 10**9):
        with pytest.raises(InvalidRequest, match="not between"):
            await queue.receive("q", max_messages=count, visibility=HOUR)
    for visibility in (timedelta(), timedelta(seconds=-1), timedelta(days=1)):
        with pytest.raises(InvalidRequest, match="not between"):
            await queue.receive("q", max_messages=1, visibility=visibility)
        with pytest.raises(InvalidRequest, match="not between"):
            await queue.extend("q", [Receipt("x")], visibility)
    with pytest.raises(InvalidRequest, match="not between"):
        await queue.receive("q", max_messages=1, visibility=HOUR, wait=timedelta(seconds=-1))


async def test_an_unknown_queue_is_an_empty_one(queue: Queue) -> None:
    assert await look(queue, "never-heard-of") == []
    assert await queue.depth("never-heard-of") == QueueDepth(0, 0, 0, 0, 0)
    assert await queue.dead_letters("never-heard-of", 10) == []
    assert await queue.redrive("never-heard-of") == 0


async def test_what_is_no_receipt_counts_for_nothing(queue: Queue) -> None:
    wrong = [Receipt("nonsense"), Receipt(""), Receipt("00000000-0000-7000-8000-000000000000")]
    await queue.publish("q", outgoing(b"stays"))
    assert await queue.ack("q", wrong) == set()
    assert await queue.extend("q", wrong, HOUR) == set()
    assert await queue.release("q", wrong) == set()
    assert (await queue.depth("q")).ready == 1


async def test_a_held_message_is_delivered_to_no_other_receiver(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"once"))
    assert len(await look(queue)) == 1
    async with closing(backend.open()) as other:
        assert await look(other) == []
    assert await look(queue) == []


async def test_a_message_without_ack_comes_again_when_its_visibility_ends(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"again"))
    first = await receive_message(queue, visibility=backend.tick)
    second = await receive_message(queue)
    assert (second.id, second.body, second.sent_at) == (first.id, first.body, first.sent_at)
    assert second.receipt != first.receipt
    assert second.receives == 2


async def test_a_stale_receipt_cannot_do_anything(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"again"))
    stale = await receive_message(queue, visibility=backend.tick)
    newest = await receive_message(queue)
    assert await queue.extend("q", [stale.receipt], HOUR) == set()
    assert await queue.release("q", [stale.receipt]) == set()
    assert await queue.ack("q", [stale.receipt]) == set()
    assert (await queue.depth("q")).in_flight == 1
    both = [stale.receipt, newest.receipt]
    assert await queue.extend("q", both, HOUR) == {newest.receipt}
    assert await queue.ack("q", both) == {newest.receipt}
    assert await queue.ack("q", both) == set()


async def test_an_extended_message_stays_invisible(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"long work"))
    held = await receive_message(queue, visibility=backend.soon)
    assert await queue.extend("q", [held.receipt], HOUR) == {held.receipt}
    await queue.publish("q", [Outgoing(b"later", delay=backend.soon)])
    assert (await receive_message(queue)).body == b"later"
    assert await queue.ack("q", [held.receipt]) == {held.receipt}


async def test_what_has_ended_cannot_be_extended_or_given_back(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"slow"))
    late = await receive_message(queue, visibility=backend.tick)
    await until(lambda: is_ready(queue), "the message is ready")
    assert await queue.extend("q", [late.receipt], HOUR) == set()
    assert await queue.release("q", [late.receipt], HOUR) == set()
    assert (await receive_message(queue)).id == late.id


async def test_a_released_message_comes_again_at_once(queue: Queue) -> None:
    await queue.publish("q", outgoing(b"not mine"))
    held = await receive_message(queue)
    assert await queue.release("q", [held.receipt]) == {held.receipt}
    assert await queue.extend("q", [held.receipt], HOUR) == set()
    again = await receive_message(queue)
    assert (again.id, again.receives) == (held.id, 2)


async def test_a_message_released_with_a_delay_comes_after_it(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"later"))
    held = await receive_message(queue)
    await queue.release("q", [held.receipt], backend.soon)
    await queue.publish("q", outgoing(b"now"))
    assert [(await receive_message(queue)).body for _ in range(2)] == [b"now", b"later"]


async def test_a_delayed_message_comes_after_its_delay(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", [Outgoing(b"later", delay=backend.soon), Outgoing(b"now")])
    assert (await queue.depth("q")).delayed == 1
    assert [(await receive_message(queue)).body for _ in range(2)] == [b"now", b"later"]


async def test_a_message_delivered_too_often_becomes_a_dead_letter_and_says_why(backend: Backend) -> None:
    async with closing(backend.open(max_receives=2)) as queue:
        await queue.publish("q", outgoing(b"poison"))
        deliveries = [await release_message(queue) for _ in range(2)]
        assert await look(queue) == []
        (dead,) = await queue.dead_letters("q", 10)
        assert (dead.id, dead.body, dead.receives) == (deliveries[0].id, b"poison", 2)
        assert "2 times" in dead.reason
        assert dead.sent_at == deliveries[0].sent_at <= dead.died_at
        assert await queue.depth("q") == QueueDepth(0, 0, 0, 1, 0)
        assert await queue.ack("q", [delivery.receipt for delivery in deliveries]) == set()


async def test_a_redriven_message_begins_anew(backend: Backend) -> None:
    async with closing(backend.open(max_receives=1)) as queue:
        await queue.publish("q", outgoing(b"poison"))
        await release_message(queue)
        assert await look(queue) == []
        assert await queue.redrive("q") == 1
        assert await queue.dead_letters("q", 10) == []
        again = await receive_message(queue)
        assert (again.body, again.receives) == (b"poison", 1)
        assert await queue.ack("q", [again.receipt]) == {again.receipt}


async def test_a_redrive_takes_only_the_named_ones_of_its_queue(backend: Backend) -> None:
    async with closing(backend.open(max_receives=1)) as queue:
        for name in ("q", "other"):
            await queue.publish(name, outgoing(b"1", b"2", b"3"))
            for _ in range(3):
                await release_message(queue, name)
            assert await look(queue, name) == []
        dead = await queue.dead_letters("q", 10)
        assert [letter.body for letter in await queue.dead_letters("q", 2)] == [letter.body for letter in dead[:2]]
        wanted = next(letter for letter in dead if letter.body == b"2")
        assert await queue.redrive("other", [wanted.id]) == 0
        assert await queue.redrive("q", [wanted.id, MessageId("nonsense"), MessageId("-1")]) == 1
        assert (await receive_message(queue)).body == b"2"
        assert {letter.body for letter in await queue.dead_letters("q", 10)} == {b"1", b"3"}
        assert (await queue.depth("other")).dead == 3


async def test_dead_letters_do_not_block_the_messages_behind_them(backend: Backend) -> None:
    async with closing(backend.open(max_receives=1)) as queue:
        await queue.publish("q", outgoing(b"1", b"2", b"3"))
        for _ in range(3):
            await release_message(queue)
        await queue.publish("q", outgoing(b"alive"))
        (delivery,) = await queue.receive("q", max_messages=1, visibility=HOUR)
        assert delivery.body == b"alive"


async def test_depth_counts_each_message_once(queue: Queue) -> None:
    await queue.publish("q", [*outgoing(*(b"%d" % n for n in range(5))), Outgoing(b"later", delay=DELAY_LIMIT)])
    held = await queue.receive("q", max_messages=2, visibility=HOUR)
    assert replace(await queue.depth("q"), oldest_age_seconds=0) == QueueDepth(
        ready=3, in_flight=2, delayed=1, dead=0, oldest_age_seconds=0
    )
    await queue.ack("q", [held[0].receipt])
    await queue.release("q", [held[1].receipt])
    assert replace(await queue.depth("q"), oldest_age_seconds=0) == QueueDepth(4, 0, 1, 0, 0)


async def test_two_receivers_share_without_overlap(backend: Backend, queue: Queue) -> None:
    bodies = {b"%d" % number for number in range(400)}
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


async def test_every_message_of_every_group_is_delivered(queue: Queue) -> None:
    sent = {b"%d/%d/%d" % key for key in itertools.product(range(7), range(3), range(20))}
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
