"""A message that was received is held, extended, given back, delayed and redriven, on every adapter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.queues import (
    HOUR,
    Backend,
    closing,
    is_ready,
    look,
    outgoing,
    receive_message,
    release_message,
)
from tests.support.waiting import until
from tracelake.ports import (
    DELAY_LIMIT,
    MessageId,
    Outgoing,
    Queue,
    QueueDepth,
)

pytestmark = pytest.mark.anyio


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
