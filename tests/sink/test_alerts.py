"""Alert events become work items: once each, whatever is published again, and never across organisations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from tests.support.dispatcher.control import an_org
from tests.support.operators import registered
from tests.support.systems.delivery import SETTINGS, Receiver
from tests.support.systems.sink import SinkSystem
from tests.support.systems.sink_alerts import STANDARD, alerts_of, event, publish
from tests.support.systems.walk import working
from tests.support.waiting import until
from tracelake.delivery.post import Sender
from tracelake.delivery.send_alerts import AlertSender
from tracelake.delivery.targets import Targets
from tracelake.domain.dag.catalog import OperatorSpec
from tracelake.domain.dag.model import Storage
from tracelake.operators.alert_route import NOWHERE, STRANGERS
from tracelake.operators.api.context import Resources
from tracelake.store.db import open_pool

pytestmark = pytest.mark.anyio

WATCH = f"""
name: watch
jobs:
  - {{name: ask, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - name: detect
    operator: outside
    runtime: ecs_udf
    inputs: [{{from: {{job: ask}}}}]
    outputs: [{{dataset: alert_events}}]
  - name: route
    operator: alert_route
    runtime: ecs_platform
    inputs: [{{from: {{dataset: alert_events}}, where: {{severity: critical}}}}]
{STANDARD}"""
ITEMS = (
    "SELECT org_id, alert_definition_id, alert_name, dedupe_key, channel, severity, event, event_time"
    " FROM alerts.deliveries ORDER BY org_id, dedupe_key, channel"
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    """A job whose tasks no worker of ours takes: the test is their code."""
    with registered(outside=OperatorSpec(lambda config: [], frozenset({"ecs_udf"}), storages=(Storage.BUFFERED,))):  # noqa: ARG005
        yield


async def routed(system: SinkSystem, count: int) -> None:
    """When so many tasks have routed."""
    await system.until(
        "SELECT count(*) = $1 FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.name = 'route' AND t.status = 'Completed'",
        count,
    )


@asynccontextmanager
async def delivering(system: SinkSystem) -> AsyncIterator[None]:
    """What is routed is sent, by the Dispatcher's word about where."""
    stop, sender = asyncio.Event(), Sender(0)
    async with open_pool(system.data_dsn, name="test", max_size=4) as pool:
        alert_sender = AlertSender(pool, Targets(system.walk.dispatcher, 0), sender, SETTINGS)
        task = asyncio.create_task(alert_sender.deliver(stop))
        try:
            yield
        finally:
            stop.set()
            await task
            await sender.close()


async def test_an_event_is_sent_once_to_each_channel_however_often_it_is_published(
    system: SinkSystem, receiver: Receiver
) -> None:
    mine = await alerts_of(system, "acme", receiver.url())
    await system.deploy(WATCH)
    whale = event(
        mine["whales"],
        "1:0xaa:7",
        chain_id=1,
        block_number=19,
        block_hash="0x" + "ab" * 32,
        tx_hash="0x" + "cd" * 32,
        payload={"amount": "5"},
    )
    worker = system.walk.worker("one", spark=system.spark, resources=Resources(data_dsn=system.data_dsn))
    async with system.sinking(), working(worker), delivering(system):
        await publish(system, [whale, event(mine["whales"], "small", severity="info")])
        await routed(system, 1)
        await until(lambda: len(receiver.got) == 2, "2 deliveries are received")
        first = system.data(ITEMS)
        assert [(row["dedupe_key"], row["channel"]) for row in first] == [
            ("1:0xaa:7", "ops"),
            ("1:0xaa:7", "page"),
        ]
        await publish(system, [whale])  # a retry
        await publish(system, [whale | {"block_number": 20, "payload": {"amount": "6"}}])  # a block that came back
        await publish(system, [whale, event(mine["whales"], "other")])
        await routed(system, 4)
        await until(lambda: len(receiver.got) == 4, "4 deliveries are received")
    items = system.data(ITEMS)
    assert {row["status"] for row in system.data("SELECT status::text FROM alerts.deliveries")} == {"Sent"}
    sent = [(got.key, json.loads(got.body)["channel"]) for got in receiver.got]
    assert sorted(sent) == [(item["dedupe_key"], item["channel"]) for item in items], "each once"
    assert [(item["dedupe_key"], item["channel"]) for item in items] == [
        ("1:0xaa:7", "ops"),
        ("1:0xaa:7", "page"),
        ("other", "ops"),
        ("other", "page"),
    ]
    assert items[:2] == first, "what was routed first is what is sent"
    assert {item["org_id"] for item in items} == {system.walk.org.id}
    assert items[0]["event"] == {
        "alert_definition_id": str(mine["whales"]),
        "dedupe_key": "1:0xaa:7",
        "event_time": "2026-01-31T10:00:00.250000+00:00",
        "chain_id": 1,
        "block_number": 19,
        "block_hash": "0x" + "ab" * 32,
        "tx_hash": "0x" + "cd" * 32,
        "severity": "critical",
        "payload": {"amount": "5"},
    }
    assert items[0]["event_time"].isoformat() == "2026-01-31T10:00:00.250000+00:00"


async def test_alerts_and_keys_of_another_organisation_have_no_effect(system: SinkSystem) -> None:
    rival = await an_org(system.walk.control.pool, "rival")
    mine, theirs = await alerts_of(system, "acme"), await alerts_of(system, "rival")
    await system.deploy(WATCH)
    await system.deploy(WATCH, rival)
    worker = system.walk.worker("one", spark=system.spark, resources=Resources(data_dsn=system.data_dsn))
    async with system.sinking(), working(worker):
        # The rival is first, with my key, about my alert and about theirs.
        await publish(system, [event(mine["whales"], "k"), event(theirs["whales"], "k")], rival)
        await routed(system, 1)
        await publish(
            system,
            [
                event(mine["whales"], "k"),
                event(theirs["whales"], "k"),
                event(mine["quiet"], "k"),
                event(mine["off"], "k"),
                event(uuid4(), "k"),
                event("no id at all", "k"),
            ],
        )
        await routed(system, 2)
    items = {
        (row["org_id"], row["alert_definition_id"], row["dedupe_key"], row["channel"]) for row in system.data(ITEMS)
    }
    assert items == {
        (org, alert, "k", channel)
        for org, alert in ((system.walk.org.id, mine["whales"]), (rival.id, theirs["whales"]))
        for channel in ("ops", "page")
    }
    said = await system.walk.control.pool.fetch(
        "SELECT t.progress ->> 'message' AS said FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.name = 'route' ORDER BY t.org_id = $1",
        system.walk.org.id,
    )
    assert [row["said"] for row in said] == [f"left out: 1 {STRANGERS}", f"left out: 4 {STRANGERS}, 1 {NOWHERE}"]
