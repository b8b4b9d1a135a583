"""Who routes and who delivers die at every commit and side effect: never two items, and each is sent at least once.

Real processes, killed by SIGKILL (`tests/support/programs/fork_server.py`), and a receiver that counts.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.support.child_process import running_program
from tests.support.faults.deaths import dies_at
from tests.support.systems.caller import Caller, calling
from tests.support.systems.delivery import SECRET, Receiver
from tests.support.systems.processes import ForkServer, System, a_system
from tests.support.waiting import until
from tracelake.data.delivery_items import Item, store_items
from tracelake.domain.crash_points import POINTS
from tracelake.domain.ids import OrgId, delivery_id

pytestmark = pytest.mark.anyio

AT_DELIVERY = [item for item in POINTS if item.startswith("delivery.")]
AT_ROUTE = [item for item in POINTS if item.startswith("alert_route.")]
DELIVERY: dict[str, Any] = {
    "allow": "127.0.0.0/8",
    "backoff_seconds": 0.05,
    "backoff_max_seconds": 0.2,
    "beat_seconds": 3600,
}
WAITING = "SELECT id FROM alerts.deliveries WHERE status = 'Pending'"
PASSED = "UPDATE alerts.deliveries SET due_at = now() WHERE status = 'Pending' AND due_at > now()"
"""Leases and waits that only wait for time to pass have waited long enough."""


@pytest.fixture
async def system(
    anyio_backend: str, fork_server: ForkServer, state_db: str, queue_db: str, tmp_path: Path
) -> AsyncIterator[System]:
    del anyio_backend
    async with a_system(fork_server, state_db, queue_db, tmp_path) as made:
        yield made


async def an_alert(system: System, caller: Caller, url: str) -> tuple[UUID, UUID]:
    """Organisation and id of alert `whales`, to channel `ops`."""
    for path, body in (
        ("/alerts/channels", {"name": "ops", "url": url, "secret": SECRET}),
        ("/alerts/definitions", {"name": "whales", "severity": "info", "channels": ["ops"]}),
    ):
        status, said = await caller.user("POST", path, body)
        assert status == 200, said
    org = await system.pool.fetchval("SELECT org_id FROM alert_definitions")
    return org, UUID(said["alert_definition_id"])


def routed(data_db: str, org: UUID, alert: UUID, keys: list[str]) -> int:
    made = [
        Item(
            delivery_id(OrgId(org), alert, key, "ops"),
            alert,
            "whales",
            key,
            "ops",
            "info",
            datetime.now(UTC),
            json.dumps({"dedupe_key": key}),
        )
        for key in keys
    ]
    return store_items(data_db, org, uuid4(), made)


def rows(data_db: str, statement: str) -> list[Any]:
    with psycopg.connect(data_db, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


async def until_sent(data_db: str) -> None:
    await until(lambda: not rows(data_db, WAITING), "no delivery is pending")


async def test_a_delivery_process_dies_at_each_point_and_every_alert_is_sent_under_one_id(
    system: System, data_db: str, receiver: Receiver
) -> None:
    keys: list[str] = []
    async with calling(system) as caller:
        system.dispatcher()
        org, alert = await an_alert(system, caller, receiver.url())
        for point in AT_DELIVERY:
            child = system.delivery(data_db, point=point, **DELIVERY)
            new = [f"{point} {number}" for number in range(3)]
            keys += new
            assert routed(data_db, org, alert, new) == 3
            await dies_at(child, point)
            assert routed(data_db, org, alert, new) == 0, "routed again, nothing is new"
            rows(data_db, PASSED)
        last = system.delivery(data_db, **DELIVERY)
        await until_sent(data_db)
        await last.kill(signal.SIGTERM)
    ended = rows(data_db, "SELECT dedupe_key, status::text, id::text FROM alerts.deliveries")
    assert sorted(key for key, _, _ in ended) == sorted(keys)
    assert {status for _, status, _ in ended} == {"Sent"}
    got = {(item.key, item.id) for item in receiver.got}
    assert got == {(key, own) for key, _, own in ended}, "each at least once, always under its own id"
    most = max(Counter(item.key for item in receiver.got).values())
    assert most <= 1 + len(AT_DELIVERY), "and again only when a process died while sending it"


async def test_a_process_that_froze_under_its_lease_and_wakes_changes_nothing(
    system: System, data_db: str, receiver: Receiver
) -> None:
    async with calling(system) as caller:
        system.dispatcher()
        org, alert = await an_alert(system, caller, receiver.url())
        frozen = system.delivery(data_db, point="delivery.sent", how="stop", **DELIVERY)
        routed(data_db, org, alert, ["a"])
        assert await frozen.stopped(), frozen.said()
        rows(data_db, PASSED)
        system.delivery(data_db, **DELIVERY)
        await until_sent(data_db)
        ended = rows(data_db, "SELECT status::text, attempts, settled_at FROM alerts.deliveries")
        frozen.send(signal.SIGCONT)
        await frozen.kill(signal.SIGTERM)
    assert rows(data_db, "SELECT status::text, attempts, settled_at FROM alerts.deliveries") == ended
    assert [(status, attempts) for status, attempts, _ in ended] == [("Sent", 2)]
    assert {item.id for item in receiver.got} == {str(delivery_id(OrgId(org), alert, "a", "ops"))}


async def test_a_worker_dies_while_it_routes_and_its_retry_makes_no_second_item(data_db: str) -> None:
    request: dict[str, Any] = {
        "data": data_db,
        "org": str(uuid4()),
        "alert": str(uuid4()),
        "rows": [],
    }
    events = [
        {"alert_definition_id": request["alert"], "dedupe_key": f"k{n}", "event_time": n, "severity": "info"}
        for n in range(1500)
    ]
    request["rows"] = events
    there = []
    for point in [*AT_ROUTE, None]:
        code = await _route({**request, "point": point})
        assert code == (-signal.SIGKILL if point else 0)
        there.append(rows(data_db, "SELECT dedupe_key, channel FROM alerts.deliveries ORDER BY 1, 2"))
    assert [len(items) for items in there] == [0, 2000, 3000], "a thousand events at a time, each of them or none"
    assert len(set(there[-1])) == 3000


async def _route(request: dict[str, Any]) -> int:
    async with running_program("alert_worker", given=request) as child:
        await child.communicate()
    assert child.returncode is not None
    return child.returncode
