"""An alert reaches its receiver, signed and known by its id; what cannot be sent says why, and nothing is lost."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from datetime import timedelta
from uuid import uuid4

import httpx
import pytest

from tests.support.metrics import counted
from tests.support.systems.delivery import READER, RIVAL, SECRET, SETTINGS, WRITER, DeliverySystem, Receiver, now
from tests.support.waiting import until
from tracelake.delivery.post import Sender
from tracelake.delivery.send_alerts import AlertSender
from tracelake.delivery.targets import Targets
from tracelake.delivery.work_items import keep_pruning, prune, settle, take
from tracelake.runtime.background import in_background
from tracelake.runtime.metrics import Metrics
from tracelake.wire.client import DispatcherClient

pytestmark = pytest.mark.anyio


async def test_an_alert_is_sent_once_signed_and_known_by_its_id(system: DeliverySystem, receiver: Receiver) -> None:
    await system.channel()
    alert = await system.alert()
    async with system.delivering():
        assert await system.items(alert, ["a"]) == 1
        assert await system.items(alert, ["a"]) == 0, "routed again, it is the same item"
        assert await system.settled() == {"a": ("Sent", 1, None)}
    (got,) = receiver.got
    signature = dict(field.split("=", 1) for field in got.headers["x-trace-signature"].split(","))
    expected = hmac.new(SECRET.encode(), signature["t"].encode() + b"." + got.body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(signature["v1"], expected)
    assert abs(int(signature["t"]) - now()) < 300
    body = json.loads(got.body)
    assert body["delivery_id"] == got.id
    assert body["alert"] == {"id": str(alert), "name": "whales"}
    assert body["event"] == {"dedupe_key": "a", "block_number": 7}
    assert SECRET not in str(got.headers)
    assert counted(system.metrics, "trace_deliveries_total", outcome="Sent") == 1


async def test_what_fails_for_now_is_tried_again_with_the_same_id_and_body(
    system: DeliverySystem, receiver: Receiver
) -> None:
    receiver.answers = [(500, {}), (429, {"retry-after": "0"}), (503, {"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"})]
    await system.channel()
    alert = await system.alert()
    async with system.delivering():
        await system.items(alert, ["a"])
        assert await system.settled() == {"a": ("Sent", 4, "the receiver answered 503")}
    assert len({(got.id, got.body) for got in receiver.got}) == 1
    assert len(receiver.got) == 4


@pytest.mark.parametrize("status", [400, 401, 404, 410, 301, 302, 307, 304])
async def test_what_will_be_refused_again_fails_at_once_and_no_redirect_is_followed(
    system: DeliverySystem, receiver: Receiver, status: int
) -> None:
    receiver.answers = [(status, {"location": receiver.url("/elsewhere")})]
    await system.channel()
    alert = await system.alert()
    async with system.delivering():
        await system.items(alert, ["a"])
        assert await system.settled() == {"a": ("Failed", 1, f"the receiver answered {status}")}
    assert [got.path for got in receiver.got] == ["/hook"]


async def test_it_fails_after_the_maximum_of_attempts_and_can_be_retried_manually(
    system: DeliverySystem, receiver: Receiver
) -> None:
    receiver.answers = [(500, {})] * 3
    await system.channel()
    alert = await system.alert()
    async with system.delivering(system.alert_sender(SETTINGS.model_copy(update={"attempts": 3}))):
        await system.items(alert, ["a"])
        assert await system.settled() == {"a": ("Failed", 3, "the receiver answered 500")}
        path = f"/v1/alerts/deliveries/{receiver.got[0].id}/retry"
        assert (await system.got(WRITER, "POST", path))["status"] == "Pending"
        await until(lambda: len(receiver.got) == 4, "4 deliveries are received")
        assert (await system.settled())["a"][:2] == ("Sent", 1)
        assert (await system.ask(WRITER, "POST", path)).status_code == 409, "what was sent is not sent again"


async def test_an_old_event_is_not_sent_unless_it_is_retried_manually(
    system: DeliverySystem, receiver: Receiver
) -> None:
    await system.channel()
    alert = await system.alert(max_age_seconds=3600)
    async with system.delivering():
        await system.items(alert, ["old"], age=4000)
        await system.items(alert, ["new"], age=3000)
        states = await system.settled()
        assert states["new"][0] == "Sent"
        assert states["old"] == ("Stale", 1, "the event is older than 3600 s")
        assert [got.key for got in receiver.got] == ["new"]
        (stale,) = (await system.got(READER, "GET", "/v1/alerts/deliveries?status=Stale"))["deliveries"]
        await system.got(WRITER, "POST", f"/v1/alerts/deliveries/{stale['id']}/retry")
        await until(lambda: len(receiver.got) == 2, "2 deliveries are received")
        assert (await system.settled())["old"][0] == "Sent"


async def test_an_alert_that_is_disabled_removed_or_leads_elsewhere_now_is_not_sent(
    system: DeliverySystem, receiver: Receiver
) -> None:
    await system.channel()
    off, gone, moved = [await system.alert(name) for name in ("off", "gone", "moved")]
    await system.got(WRITER, "PATCH", "/v1/alerts/definitions/off", json={"enabled": False})
    await system.got(WRITER, "DELETE", "/v1/alerts/definitions/gone")
    await system.got(WRITER, "PATCH", "/v1/alerts/definitions/moved", json={"channels": []})
    await system.items(off, ["off"])
    await system.items(gone, ["gone"])
    await system.items(moved, ["moved"])
    async with system.delivering():
        states = await system.settled()
    assert {key: status for key, (status, _, _) in states.items()} == dict.fromkeys(("off", "gone", "moved"), "Failed")
    assert states["off"][2] == "the alert is disabled"
    assert receiver.got == []


async def test_two_processes_never_send_the_same_alert(system: DeliverySystem, receiver: Receiver) -> None:
    await system.channel()
    alert = await system.alert()
    keys = [f"k{number}" for number in range(120)]
    settings = SETTINGS.model_copy(update={"per_channel": 16})
    async with system.delivering(system.alert_sender(settings)), system.delivering(system.alert_sender(settings)):
        await system.items(alert, keys[:60])
        await system.items(alert, keys[60:])
        states = await system.settled()
    assert {status for status, _, _ in states.values()} == {"Sent"}
    assert sorted(got.key for got in receiver.got) == sorted(keys)


async def test_a_slow_receiver_does_not_delay_the_others(system: DeliverySystem, receiver: Receiver) -> None:
    receiver.hold, receiver.held_path = threading.Event(), "/slow"
    await system.channel("slow", receiver.url("/slow"))
    await system.channel("ops")
    slow, quick = await system.alert("slow", channels=["slow"]), await system.alert("quick")
    settings = SETTINGS.model_copy(
        update={"concurrency": 4, "per_channel": 2, "timeout_seconds": 60.0, "lease_seconds": 200.0}
    )
    async with system.delivering(system.alert_sender(settings)):
        await system.items(slow, [f"s{number}" for number in range(20)], channel="slow")
        await until(lambda: len(receiver.got) == 2, "2 deliveries are received")
        await system.items(quick, [f"q{number}" for number in range(20)])
        await until(lambda: sum(got.key.startswith("q") for got in receiver.got) == 20, "20 deliveries are received")
        assert sum(got.key.startswith("s") for got in receiver.got) == 2, "and no more than that go there at once"
        receiver.hold.set()
        await system.settled()


async def test_deliveries_of_a_lost_process_are_sent_by_another_when_its_lease_is_over(system: DeliverySystem) -> None:
    await system.channel()
    alert = await system.alert()
    await system.items(alert, ["a"])
    (lost,) = await take(system.pool, 10, {}, SETTINGS)
    assert not await take(system.pool, 10, {}, SETTINGS), "while it is leased, no other process gets it"
    await system.pool.execute("UPDATE alerts.deliveries SET due_at = now()")  # so long has passed
    async with system.delivering():
        assert (await system.settled())["a"][:2] == ("Sent", 2)
    assert not await settle(system.pool, lost, "Failed", "too late"), "who lost it cannot end it"
    assert (await system.states())["a"][0] == "Sent"


async def test_a_receiver_that_never_answers_is_tried_again(system: DeliverySystem, receiver: Receiver) -> None:
    receiver.hold, receiver.held_path = threading.Event(), "/never"
    await system.channel("ops", receiver.url("/never"))
    await system.items(await system.alert(), ["a"])
    async with system.delivering(
        system.alert_sender(SETTINGS.model_copy(update={"attempts": 2, "timeout_seconds": 0.2}))
    ):
        assert await system.settled() == {"a": ("Failed", 2, "no answer within 0.2 s")}


async def test_a_receiver_that_is_not_there_is_tried_again(system: DeliverySystem) -> None:
    await system.channel("ops", "http://127.0.0.1:1/")
    await system.items(await system.alert(), ["a"])
    async with system.delivering(system.alert_sender(SETTINGS.model_copy(update={"attempts": 2}))):
        assert await system.settled() == {"a": ("Failed", 2, "it cannot be connected to: no server answers")}


async def test_a_dispatcher_that_is_away_costs_no_attempt(system: DeliverySystem, receiver: Receiver) -> None:
    await system.channel()
    alert = await system.alert()
    await system.items(alert, ["a"])
    async with httpx.AsyncClient(base_url="https://127.0.0.1:1", trust_env=False) as unreachable:
        alert_sender = AlertSender(
            system.pool, Targets(DispatcherClient(unreachable), 0), Sender(0), SETTINGS, Metrics()
        )
        async with system.delivering(alert_sender):
            await until(lambda: _said(system), "the error is stored")
    assert (await system.states())["a"][1] == 0
    async with system.delivering():
        assert (await system.settled())["a"][:2] == ("Sent", 1)
    assert len(receiver.got) == 1


async def _said(system: DeliverySystem) -> bool:
    return "its address is not known" in ((await system.states())["a"][2] or "")


async def test_an_endless_answer_is_read_up_to_the_limit(system: DeliverySystem) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n")
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    async with server:
        await system.channel("ops", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        alert = await system.alert()
        await system.items(alert, ["a"])
        async with system.delivering():
            assert (await system.settled())["a"][:2] == ("Sent", 1)


async def test_another_organisation_with_the_same_keys_suppresses_nothing(
    system: DeliverySystem, receiver: Receiver
) -> None:
    for user in (WRITER, RIVAL):
        await system.channel(url=receiver.url(f"/{user[:4]}"), user=user)
    mine, theirs = await system.alert(), await system.alert(user=RIVAL)
    async with system.delivering():
        assert await system.items(theirs, ["a"], user=RIVAL) == 1
        assert await system.items(mine, ["a"]) == 1
        # Rows of theirs that name my alert: mine is sent all the same, and theirs have no effect.
        assert await system.items(mine, ["b"], user=RIVAL) == 1
        assert await system.items(mine, ["b"]) == 1
        await system.settled()
    assert sorted((got.path, got.key) for got in receiver.got) == [("/acme", "a"), ("/acme", "b"), ("/riva", "a")]


async def test_deliveries_are_shown_by_page_to_their_own_organisation_alone(system: DeliverySystem) -> None:
    await system.channel()
    alert = await system.alert()
    await system.items(alert, [f"k{number}" for number in range(5)])
    first = await system.got(READER, "GET", "/v1/alerts/deliveries?limit=3")
    rest = await system.got(READER, "GET", f"/v1/alerts/deliveries?limit=3&before={first['next']}")
    assert {item["dedupe_key"] for item in (*first["deliveries"], *rest["deliveries"])} == {f"k{n}" for n in range(5)}
    assert (len(first["deliveries"]), len(rest["deliveries"]), rest["next"]) == (3, 2, None)
    assert (await system.got(READER, "GET", "/v1/alerts/deliveries?alert=other"))["deliveries"] == []
    assert (await system.got(RIVAL, "GET", "/v1/alerts/deliveries"))["deliveries"] == []
    delivery = first["deliveries"][0]["id"]
    for user, path, status in (
        (RIVAL, f"/v1/alerts/deliveries/{delivery}/retry", 404),
        (READER, f"/v1/alerts/deliveries/{delivery}/retry", 403),
        (WRITER, f"/v1/alerts/deliveries/{delivery}/retry", 409),
        (WRITER, f"/v1/alerts/deliveries/{uuid4()}/retry", 404),
        (WRITER, "/v1/alerts/deliveries/..%2f/retry", 404),
    ):
        assert (await system.ask(user, "POST", path)).status_code == status
    assert (await system.ask(READER, "GET", "/v1/alerts/deliveries?status=Lost")).status_code == 400
    assert (await system.gateway.get("/v1/alerts/deliveries")).status_code == 401


async def test_deliveries_that_ended_long_ago_are_deleted_and_no_others(system: DeliverySystem) -> None:
    await system.channel()
    alert = await system.alert()
    await system.items(alert, ["old", "older", "young"])
    async with system.delivering():
        await system.settled()
    await system.items(alert, ["waits"])
    age = "UPDATE alerts.deliveries SET settled_at = now() - interval '11 days' WHERE dedupe_key LIKE 'old%'"
    await system.pool.execute(age)

    async def only_the_others() -> bool:
        return (await system.states()).keys() == {"young", "waits"}

    async with in_background(keep_pruning(system.pool, timedelta(days=10))):
        await until(only_the_others, "the old deliveries are deleted")
    assert await prune(system.pool, timedelta(0)) == 0  # what has ended within a day stays, whatever the age given
