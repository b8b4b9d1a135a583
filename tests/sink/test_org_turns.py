"""Batches of organisations take turns at the sink: one with many waiting delays no batch of another."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.support.dispatcher.control import an_org
from tests.support.systems.sink import SinkSystem, alert
from tracelake.domain.flow.tiers import BUFFER_QUEUE

pytestmark = pytest.mark.anyio

FLOOD = 40


async def received(system: SinkSystem, count: int) -> list[dict[str, Any]]:
    """The next messages, as a sink gets them."""
    taken = await system.walk.control.queue.receive(
        BUFFER_QUEUE, max_messages=count, visibility=timedelta(minutes=5), wait=timedelta()
    )
    return [msgspec.json.decode(item.body) for item in taken]


async def test_a_flood_of_batches_of_one_organisation_does_not_delay_those_of_another(system: SinkSystem) -> None:
    rival = await an_org(system.walk.control.pool, "rival")
    for org in (None, rival):
        await system.deploy(org=org)
    flooding, other = await system.producer(), await system.producer(rival)
    for number in range(FLOOD):
        await flooding.publish([alert(f"{number}")])
    await system.walk.until_outbox_is_empty()
    (first,) = await received(system, 1)
    publish = await other.publish([alert("b")])
    await system.walk.until_outbox_is_empty()
    found = [first, *await received(system, 8)]
    assert {message["kind"] for message in found} == {"buffer_batch", "buffer_table"}
    assert str(publish) in {message.get("publish_id") for message in found}
    rest = [message for _ in range(FLOOD) for message in await received(system, 10)]
    assert len([message for message in [*found, *rest] if message["kind"] == "buffer_batch"]) == FLOOD + 1
    orgs = {str(system.walk.org.id), str(rival.id)}
    assert {message["org_id"] for message in [*found, *rest]} == orgs, "every message says whose it is"
