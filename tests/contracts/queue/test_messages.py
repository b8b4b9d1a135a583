"""The guarantees of the `Queue` port, proven on every adapter: SQS is moto, over HTTP.

Nothing here asserts how long something took. That a message is invisible is shown by another one that fell due later
and came first; that a wait was woken, by switching off everything but the waking.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.queues import (
    HOUR,
    PLENTY,
    drain,
    look,
    outgoing,
    receive_message,
)
from tracelake.errors import InvalidRequest
from tracelake.ports import (
    BODY_LIMIT_BYTES,
    DELAY_LIMIT,
    MessageId,
    Outgoing,
    Queue,
    QueueDepth,
    Receipt,
)

pytestmark = pytest.mark.anyio


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
