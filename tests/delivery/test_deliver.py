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

from tests.support.systems.delivery import READER, RIVAL, SECRET, TOLD, WRITER, House, Receiver, now, until
from tracelake.delivery.post import Sender
from tracelake.delivery.prune_items import keep_pruning, prune_items
from tracelake.delivery.send_alerts import AlertSender
from tracelake.delivery.targets import Targets
from tracelake.delivery.work_items import settle, take
from tracelake.runtime.background import in_background
from tracelake.runtime.metrics import Metrics
from tracelake.wire.client import DispatcherClient

pytestmark = pytest.mark.anyio


async def test_an_alert_is_sent_once_signed_and_known_by_its_id(house: House, receiver: Receiver) -> None:
    await house.channel()
    alert = await house.alert()
    async with house.delivering():
        assert await house.items(alert, ["a"]) == 1
        assert await house.items(alert, ["a"]) == 0, "routed again, it is the same item"
        assert await house.settled() == {"a": ("Sent", 1, None)}
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
    assert house.metrics.registry.get_sample_value("trace_deliveries_total", {"outcome": "Sent"}) == 1


async def test_what_fails_for_now_is_tried_again_with_the_same_id_and_body(house: House, receiver: Receiver) -> None:
    receiver.answers = [(500, {}), (429, {"retry-after": "0"}), (503, {"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"})]
    await house.channel()
    alert = await house.alert()
    async with house.delivering():
        await house.items(alert, ["a"])
        assert await house.settled() == {"a": ("Sent", 4, "the receiver answered 503")}
    assert len({(got.id, got.body) for got in receiver.got}) == 1
    assert len(receiver.got) == 4


@pytest.mark.parametrize("status", [400, 401, 404, 410, 301, 302, 307, 304])
async def test_what_will_be_refused_again_fails_at_once_and_no_redirect_is_followed(
    house: House, receiver: Receiver, status: int
) -> None:
    receiver.answers = [(status, {"location": receiver.url("/elsewhere")})]
    await house.channel()
    alert = await house.alert()
    async with house.delivering():
        await house.items(alert, ["a"])
        assert await house.settled() == {"a": ("Failed", 1, f"the receiver answered {status}")}
    assert [got.path for got in receiver.got] == ["/hook"]


async def test_it_fails_after_the_maximum_of_attempts_and_can_be_retried_manually(
    house: House, receiver: Receiver
) -> None:
    receiver.answers = [(500, {})] * 3
    await house.channel()
    alert = await house.alert()
    async with house.delivering(house.courier(TOLD.model_copy(update={"attempts": 3}))):
        await house.items(alert, ["a"])
        assert await house.settled() == {"a": ("Failed", 3, "the receiver answered 500")}
        path = f"/v1/alerts/deliveries/{receiver.got[0].id}/retry"
        assert (await house.got(WRITER, "POST", path))["status"] == "Pending"
        await until(lambda: len(receiver.got) == 4)
        assert (await house.settled())["a"][:2] == ("Sent", 1)
        assert (await house.ask(WRITER, "POST", path)).status_code == 409, "what was sent is not sent again"


async def test_an_old_event_is_not_sent_unless_it_is_retried_manually(house: House, receiver: Receiver) -> None:
    await house.channel()
    alert = await house.alert(max_age_seconds=3600)
    async with house.delivering():
        await house.items(alert, ["old"], age=4000)
        await house.items(alert, ["new"], age=3000)
        states = await house.settled()
        assert states["new"][0] == "Sent"
        assert states["old"] == ("Stale", 1, "the event is older than 3600 s")
        assert [got.key for got in receiver.got] == ["new"]
        (stale,) = (await house.got(READER, "GET", "/v1/alerts/deliveries?status=Stale"))["deliveries"]
        await house.got(WRITER, "POST", f"/v1/alerts/deliveries/{stale['id']}/retry")
        await until(lambda: len(receiver.got) == 2)
        assert (await house.settled())["old"][0] == "Sent"


async def test_an_alert_that_is_disabled_removed_or_leads_elsewhere_now_is_not_sent(
    house: House, receiver: Receiver
) -> None:
    await house.channel()
    off, gone, moved = [await house.alert(name) for name in ("off", "gone", "moved")]
    await house.got(WRITER, "PATCH", "/v1/alerts/definitions/off", json={"enabled": False})
    await house.got(WRITER, "DELETE", "/v1/alerts/definitions/gone")
    await house.got(WRITER, "PATCH", "/v1/alerts/definitions/moved", json={"channels": []})
    await house.items(off, ["off"])
    await house.items(gone, ["gone"])
    await house.items(moved, ["moved"])
    async with house.delivering():
        states = await house.settled()
    assert {key: status for key, (status, _, _) in states.items()} == dict.fromkeys(("off", "gone", "moved"), "Failed")
    assert states["off"][2] == "the alert is disabled"
    assert receiver.got == []


async def test_two_processes_never_send_the_same_alert(house: House, receiver: Receiver) -> None:
    await house.channel()
    alert = await house.alert()
    keys = [f"k{number}" for number in range(120)]
    settings = TOLD.model_copy(update={"per_channel": 16})
    async with house.delivering(house.courier(settings)), house.delivering(house.courier(settings)):
        await house.items(alert, keys[:60])
        await house.items(alert, keys[60:])
        states = await house.settled()
    assert {status for status, _, _ in states.values()} == {"Sent"}
    assert sorted(got.key for got in receiver.got) == sorted(keys)


async def test_a_slow_receiver_does_not_delay_the_others(house: House, receiver: Receiver) -> None:
    receiver.hold, receiver.held_path = threading.Event(), "/slow"
    await house.channel("slow", receiver.url("/slow"))
    await house.channel("ops")
    slow, quick = await house.alert("slow", channels=["slow"]), await house.alert("quick")
    settings = TOLD.model_copy(
        update={"concurrency": 4, "per_channel": 2, "timeout_seconds": 60.0, "lease_seconds": 200.0}
    )
    async with house.delivering(house.courier(settings)):
        await house.items(slow, [f"s{number}" for number in range(20)], channel="slow")
        await until(lambda: len(receiver.got) == 2)
        await house.items(quick, [f"q{number}" for number in range(20)])
        await until(lambda: sum(got.key.startswith("q") for got in receiver.got) == 20)
        assert sum(got.key.startswith("s") for got in receiver.got) == 2, "and no more than that go there at once"
        receiver.hold.set()
        await house.settled()


async def test_deliveries_of_a_lost_process_are_sent_by_another_when_its_lease_is_over(house: House) -> None:
    await house.channel()
    alert = await house.alert()
    await house.items(alert, ["a"])
    (lost,) = await take(house.pool, 10, {}, TOLD)
    assert not await take(house.pool, 10, {}, TOLD), "while it is leased, no other process gets it"
    await house.pool.execute("UPDATE alerts.deliveries SET due_at = now()")  # so long has passed
    async with house.delivering():
        assert (await house.settled())["a"][:2] == ("Sent", 2)
    assert not await settle(house.pool, lost, "Failed", "too late"), "who lost it cannot end it"
    assert (await house.states())["a"][0] == "Sent"


async def test_a_receiver_that_never_answers_is_tried_again(house: House, receiver: Receiver) -> None:
    receiver.hold, receiver.held_path = threading.Event(), "/never"
    await house.channel("ops", receiver.url("/never"))
    await house.items(await house.alert(), ["a"])
    async with house.delivering(house.courier(TOLD.model_copy(update={"attempts": 2, "timeout_seconds": 0.2}))):
        assert await house.settled() == {"a": ("Failed", 2, "no answer within 0.2 s")}


async def test_a_receiver_that_is_not_there_is_tried_again(house: House) -> None:
    await house.channel("ops", "http://127.0.0.1:1/")
    await house.items(await house.alert(), ["a"])
    async with house.delivering(house.courier(TOLD.model_copy(update={"attempts": 2}))):
        assert await house.settled() == {"a": ("Failed", 2, "it cannot be connected to: no server answers")}


async def test_a_dispatcher_that_is_away_costs_no_attempt(house: House, receiver: Receiver) -> None:
    await house.channel()
    alert = await house.alert()
    await house.items(alert, ["a"])
    async with httpx.AsyncClient(base_url="https://127.0.0.1:1", trust_env=False) as unreachable:
        courier = AlertSender(house.pool, Targets(DispatcherClient(unreachable), 0), Sender(0), TOLD, Metrics())
        async with house.delivering(courier):
            await until(lambda: _said(house))
    assert (await house.states())["a"][1] == 0
    async with house.delivering():
        assert (await house.settled())["a"][:2] == ("Sent", 1)
    assert len(receiver.got) == 1


async def _said(house: House) -> bool:
    return "its address is not known" in ((await house.states())["a"][2] or "")


async def test_an_endless_answer_is_read_up_to_the_limit(house: House) -> None:
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
        await house.channel("ops", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        alert = await house.alert()
        await house.items(alert, ["a"])
        async with house.delivering():
            assert (await house.settled())["a"][:2] == ("Sent", 1)


async def test_another_organisation_with_the_same_keys_suppresses_nothing(house: House, receiver: Receiver) -> None:
    for user in (WRITER, RIVAL):
        await house.channel(url=receiver.url(f"/{user[:4]}"), user=user)
    mine, theirs = await house.alert(), await house.alert(user=RIVAL)
    async with house.delivering():
        assert await house.items(theirs, ["a"], user=RIVAL) == 1
        assert await house.items(mine, ["a"]) == 1
        # Rows of theirs that name my alert: mine is sent all the same, and theirs have no effect.
        assert await house.items(mine, ["b"], user=RIVAL) == 1
        assert await house.items(mine, ["b"]) == 1
        await house.settled()
    assert sorted((got.path, got.key) for got in receiver.got) == [("/acme", "a"), ("/acme", "b"), ("/riva", "a")]


async def test_deliveries_are_shown_by_page_to_their_own_organisation_alone(house: House) -> None:
    await house.channel()
    alert = await house.alert()
    await house.items(alert, [f"k{number}" for number in range(5)])
    first = await house.got(READER, "GET", "/v1/alerts/deliveries?limit=3")
    rest = await house.got(READER, "GET", f"/v1/alerts/deliveries?limit=3&before={first['next']}")
    assert {item["dedupe_key"] for item in (*first["deliveries"], *rest["deliveries"])} == {f"k{n}" for n in range(5)}
    assert (len(first["deliveries"]), len(rest["deliveries"]), rest["next"]) == (3, 2, None)
    assert (await house.got(READER, "GET", "/v1/alerts/deliveries?alert=other"))["deliveries"] == []
    assert (await house.got(RIVAL, "GET", "/v1/alerts/deliveries"))["deliveries"] == []
    delivery = first["deliveries"][0]["id"]
    for user, path, status in (
        (RIVAL, f"/v1/alerts/deliveries/{delivery}/retry", 404),
        (READER, f"/v1/alerts/deliveries/{delivery}/retry", 403),
        (WRITER, f"/v1/alerts/deliveries/{delivery}/retry", 409),
        (WRITER, f"/v1/alerts/deliveries/{uuid4()}/retry", 404),
        (WRITER, "/v1/alerts/deliveries/..%2f/retry", 404),
    ):
        assert (await house.ask(user, "POST", path)).status_code == status
    assert (await house.ask(READER, "GET", "/v1/alerts/deliveries?status=Lost")).status_code == 400
    assert (await house.gateway.get("/v1/alerts/deliveries")).status_code == 401


async def test_deliveries_that_ended_long_ago_are_deleted_and_no_others(house: House) -> None:
    await house.channel()
    alert = await house.alert()
    await house.items(alert, ["old", "older", "young"])
    async with house.delivering():
        await house.settled()
    await house.items(alert, ["waits"])
    age = "UPDATE alerts.deliveries SET settled_at = now() - interval '11 days' WHERE dedupe_key LIKE 'old%'"
    await house.pool.execute(age)

    async def only_the_others() -> bool:
        return (await house.states()).keys() == {"young", "waits"}

    async with in_background(keep_pruning(house.pool, timedelta(days=10))):
        await until(only_the_others)
    assert await prune_items(house.pool, timedelta(0)) == 0  # what has ended within a day stays, whatever the age given
