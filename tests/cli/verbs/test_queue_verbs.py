"""`trace queue` on every adapter: what was given up is listed, and sent again."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr

from tests.support.queues import look, outgoing, release_message, sqs_settings
from tests.support.systems.command_line import Trace
from tracelake.lite.home import Home
from tracelake.settings import QueueSettings, Settings, load_settings
from tracelake.wiring import open_queue

TASKS = "tasks-ecs_platform"
HOSTILE = b'{"task_id": 1}\x1b]0;owned\x07'


@pytest.fixture(params=["pg", "sqs"])
def settings(request: pytest.FixtureRequest, home: Home, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """As the commands find them in the environment."""
    if request.param == "pg":
        chosen = QueueSettings(dsn=SecretStr(request.getfixturevalue("queue_db")))
    else:
        chosen = sqs_settings(request.getfixturevalue("moto"))
    for name, value in chosen.model_dump(exclude_none=True, exclude_defaults=True).items():
        plain = value.get_secret_value() if isinstance(value, SecretStr) else value
        monkeypatch.setenv(f"TRACE_QUEUE__{name.upper()}", str(plain))
    return load_settings({}, home=home.root).model_copy(update={"queue": chosen})


def test_messages_that_were_given_up_are_listed_and_sent_again(settings: Settings, trace: Trace) -> None:
    assert "no message was given up" in trace("queue", "dead").out
    asyncio.run(give_up(settings, HOSTILE, b"second"))
    found = trace("queue", "dead", "--json").json
    assert [(row["queue"], row["deliveries"]) for row in found] == [(TASKS, 5)] * 2
    assert {row["message"] for row in found} == {HOSTILE.decode(), "second"}
    shown = trace("queue", "dead", TASKS).out
    assert found[0]["id"] in shown
    assert "\x1b" not in shown
    assert len(trace("queue", "dead", "--limit", "1", "--json").json) == 1
    second = next(row["id"] for row in found if row["message"] == "second")
    assert trace("queue", "redrive", TASKS, second, "--json").json == {"redriven": 1}
    assert "1 messages are sent again" in trace("queue", "redrive", TASKS).out
    assert trace("queue", "dead", "--json").json == []
    assert sorted(asyncio.run(ready(settings))) == sorted([HOSTILE, b"second"])


def test_without_a_queue_in_the_settings_it_says_which_to_set(trace: Trace) -> None:
    said = trace("queue", "dead")
    assert said.code == 1
    assert "queue.dsn" in said.err


async def give_up(settings: Settings, *bodies: bytes) -> None:
    async with open_queue(settings) as queue:
        await queue.publish(TASKS, outgoing(*bodies))
        for _ in range(5 * len(bodies)):
            await release_message(queue, TASKS)
        assert await look(queue, TASKS) == []


async def ready(settings: Settings) -> list[bytes]:
    async with open_queue(settings) as queue:
        return [delivery.body for delivery in await look(queue, TASKS)]
