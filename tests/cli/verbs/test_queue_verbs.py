"""`trace queue`: what was given up is listed, and sent again."""

from __future__ import annotations

import pytest

from tests.support.queues import look, outgoing, release_message
from tests.support.systems.command_line import Running, Trace
from tracelake.domain.flow.tiers import BUFFER_QUEUE
from tracelake.ports import Queue
from tracelake.store.first_start import FIRST_ADMIN

pytestmark = pytest.mark.usefixtures("platform_admin")

TASKS = "tasks-ecs_platform"
HOSTILE = b'{"task_id": 1}\x1b]0;owned\x07'
LONG = b"\xff" + b"x" * 10_000


@pytest.fixture
def platform_admin(running: Running) -> None:
    """As the one whom the first start creates is."""
    running.do(
        running.control.pool.execute("UPDATE users SET platform_admin = true WHERE external_id = $1", FIRST_ADMIN)
    )


def test_messages_that_were_given_up_are_listed_and_sent_again(running: Running, trace: Trace) -> None:
    assert "no message was given up" in trace("queue", "dead").out
    running.do(give_up(running.control.queue, TASKS, HOSTILE, b"second"))
    running.do(give_up(running.control.queue, BUFFER_QUEUE, LONG))
    found = trace("queue", "dead", "--json").json["messages"]
    assert [(row["queue"], row["deliveries"], row["size_bytes"]) for row in found] == [
        (TASKS, 5, len(HOSTILE)),
        (TASKS, 5, len(b"second")),
        (BUFFER_QUEUE, 5, len(LONG)),
    ]
    assert [row["message"] for row in found] == [HOSTILE.decode(), "second", "�" + "x" * 1_999]
    assert all(row["reason"] for row in found)
    shown = trace("queue", "dead", TASKS).out
    assert found[0]["id"] in shown
    assert "\x1b" not in shown
    assert len(trace("queue", "dead", "--limit", "1", "--json").json["messages"]) == 2, "one of each queue"
    assert trace("queue", "redrive", TASKS, found[1]["id"], "--json").json == {"redriven": 1}
    assert "1 message" in trace("queue", "redrive", TASKS).out
    assert [row["queue"] for row in trace("queue", "dead", "--json").json["messages"]] == [BUFFER_QUEUE]
    assert sorted(running.do(ready(running.control.queue))) == sorted([HOSTILE, b"second"])


@pytest.mark.parametrize("words", [("dead", "nope"), ("redrive", "nope")])
def test_a_queue_that_is_not_there_is_refused_with_those_that_are(trace: Trace, words: tuple[str, ...]) -> None:
    said = trace("queue", *words)
    assert said.code == 1
    assert "there is no queue 'nope'" in said.err
    assert TASKS in said.err
    assert BUFFER_QUEUE in said.err


def test_a_message_that_is_not_there_is_not_sent_again(trace: Trace) -> None:
    assert trace("queue", "redrive", TASKS, "1", "no id", "--json").json == {"redriven": 0}


async def give_up(queue: Queue, name: str, *bodies: bytes) -> None:
    await queue.publish(name, outgoing(*bodies))
    for _ in range(5 * len(bodies)):
        await release_message(queue, name)
    assert await look(queue, name) == []


async def ready(queue: Queue) -> list[bytes]:
    return [delivery.body for delivery in await look(queue, TASKS)]
