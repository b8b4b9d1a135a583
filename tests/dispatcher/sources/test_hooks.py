"""Webhook sources: what is signed is accepted once and fires; what is not is refused without a reason."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.dispatcher.control import PULL, WORKS, Org, an_org, control_for, deployed_and_active
from tests.support.identity.hook_signatures import sign
from tests.support.operators import registered
from tests.support.verbs import pause_job, resume_job
from tests.support.waiting import until
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.prune import PruneSources
from tracelake.dispatcher.sources.accept_hooks import HookCall, Hooks
from tracelake.dispatcher.sources.show import list_deliveries, show_source
from tracelake.domain.sources.signatures import HookScheme
from tracelake.errors import BodyTooLarge, InvalidRequest, NotFound, ServiceUnavailable, Unauthenticated
from tracelake.wire.user.sources import FireRequest, ReplayDeliveryRequest, SourceDeliveriesQuery

pytestmark = pytest.mark.anyio

SECRET, NEXT = "the secret of the shop", "the next secret of it"
KEYS = {"shop_key": (NEXT.replace(" ", "_"), SECRET.replace(" ", "_"))}
OLD = KEYS["shop_key"][1]
DAG = """
name: desk
defaults: {runtime: ecs_platform}
jobs:
  - {name: load, operator: works, source: {kind: webhook, scheme: standard, secret: SHOP_KEY, max_bytes: 1000}}
  - {name: tick, operator: pull, source: {kind: webhook, scheme: github, secret: shop_key}, outputs: [left, right]}
  - {name: pay, operator: works, source: {kind: webhook, scheme: stripe, secret: shop_key, tolerance: 1m}}
  - {name: plain, operator: works, source: {kind: webhook, scheme: hmac, secret: shop_key}}
  - {name: bare, operator: works, source: {kind: webhook, scheme: hmac, secret: other_key}}
"""
Send = Callable[..., Any]


@pytest.fixture
async def control(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Control]:
    with registered(pull=PULL, works=WORKS):
        async with control_for(state_db, queue_db, tmp_path) as opened:
            yield replace(opened, hook_secrets=KEYS)


@pytest.fixture
async def org(control: Control) -> Org:
    made = await an_org(control.pool)
    await deployed_and_active(control, made, DAG)
    return made


@pytest.fixture
def send(control: Control, org: Org) -> Send:
    accept = control.hooks().batched()

    async def call(job: str, headers: dict[str, str], body: bytes, *, slug: str = org.slug) -> UUID:
        return await accept(HookCall(slug, "desk", job, headers, body))

    return call


def signed(scheme: str, body: bytes, *, key: str = OLD, at: float = 0.0) -> dict[str, str]:
    return sign(HookScheme(scheme), body, key, time.time() + at)


async def tasks(control: Control) -> list[Any]:
    rows = await control.pool.fetch("SELECT input_versions FROM tasks ORDER BY id")
    return [row["input_versions"]["fired"]["body"] for row in rows]


@pytest.mark.parametrize(("job", "scheme"), [("load", "standard"), ("pay", "stripe"), ("plain", "hmac")])
async def test_a_signed_call_makes_a_task_with_its_body_once(
    control: Control, send: Send, job: str, scheme: str
) -> None:
    body = json.dumps({"id": "evt_1", "n": 1}).encode()
    first = await send(job, signed(scheme, body), body)
    again = await send(job, signed(scheme, body, key=KEYS["shop_key"][0], at=1), body)
    assert first == again
    assert await tasks(control) == [{"id": "evt_1", "n": 1}]


async def test_deliveries_whose_ids_differ_only_at_the_end_are_two(control: Control, send: Send) -> None:
    bodies = [json.dumps({"id": "e" * 300 + end}).encode() for end in ("a", "b")]
    ids = [await send("pay", signed("stripe", body), body) for body in (*bodies, bodies[0])]
    assert len({*ids}) == 2
    assert ids[0] == ids[2]
    assert len(await tasks(control)) == 2


async def test_a_source_that_forwards_emits_events_with_the_body(control: Control, send: Send) -> None:
    for number in (1, 2):
        body = json.dumps({"n": number}).encode()
        await send("tick", signed("github", body), body)
    events = await control.pool.fetch("SELECT origin::text, payload, cursor_value FROM events ORDER BY cursor_value")
    assert [event["payload"] for event in events] == [{"n": 1}, {"n": 1}, {"n": 2}, {"n": 2}]
    assert {event["origin"] for event in events} == {"webhook"}
    turns = "SELECT array_agg(turn_of ORDER BY turn_of) FROM outbox WHERE kind = 'route_event'"
    assert await control.pool.fetchval(turns) == await control.pool.fetchval(
        "SELECT array_agg(dataset_uuid ORDER BY dataset_uuid) FROM events"
    )


async def test_calls_at_once_are_stored_once_each(control: Control, send: Send) -> None:
    bodies = [json.dumps({"n": number % 20}).encode() for number in range(100)]
    ids = await asyncio.gather(*(send("plain", signed("hmac", body), body) for body in bodies))
    assert len(set(ids)) == 20
    assert sorted(body["n"] for body in await tasks(control)) == list(range(20))


WRONG: dict[str, Callable[[bytes], tuple[str, dict[str, str]]]] = {
    "another secret": lambda body: ("load", signed("standard", body, key="another_secret_of_it")),
    "another body": lambda body: ("load", signed("standard", body + b" ")),
    "too old": lambda body: ("load", signed("standard", body, at=-301)),
    "from the future": lambda body: ("load", signed("standard", body, at=330)),
    "another scheme": lambda body: ("load", signed("github", body)),
    "nothing signed": lambda _: ("load", {}),
    "an id that was not signed": lambda body: ("load", signed("standard", body) | {"webhook-id": "msg_2"}),
    "a time that was not signed": lambda body: ("load", signed("standard", body) | {"webhook-timestamp": "1"}),
    "a time that is no number": lambda body: ("load", signed("standard", body) | {"webhook-timestamp": "x"}),
    "a stripe time without a tolerance": lambda body: ("pay", signed("stripe", body, at=-70)),
    "a stripe header without a time": lambda _: ("pay", {"stripe-signature": "v1=00"}),
    "a plain hex": lambda _: ("plain", {"x-signature-256": "00"}),
    "signs beyond ASCII": lambda _: ("plain", {"x-signature-256": "sha256=\u00e9"}),
    "no such job": lambda body: ("nothing", signed("hmac", body)),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_is_not_signed_right_is_refused_without_a_reason(control: Control, send: Send, wrong: str) -> None:
    body = b'{"n": 1}'
    job, headers = WRONG[wrong](body)
    with pytest.raises(Unauthenticated) as refused:
        await send(job, headers, body)
    assert (refused.value.message, refused.value.where, refused.value.hint) == ("the call was not accepted", "", None)
    assert await control.pool.fetchval("SELECT count(*) FROM source_deliveries") == 0


async def test_another_organisation_has_no_part_in_it(control: Control, send: Send) -> None:
    await an_org(control.pool, "other")
    body = b"{}"
    with pytest.raises(Unauthenticated):
        await send("load", signed("standard", body), body, slug="other")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"not json", b"\xff", b'{"a": "\\u0000"}', b"[" * 500, b"1e999", b'"\\ud800"']
)
async def test_a_signed_body_that_is_not_json_is_refused_and_not_stored(
    control: Control, send: Send, body: bytes
) -> None:
    with pytest.raises(InvalidRequest):
        await send("load", signed("standard", body), body)
    assert await control.pool.fetchval("SELECT count(*) FROM source_deliveries") == 0


async def test_a_body_larger_than_the_source_takes_is_refused(send: Send) -> None:
    body = json.dumps("x" * 1000).encode()
    with pytest.raises(BodyTooLarge):
        await send("load", signed("standard", body), body)


async def test_a_source_without_its_secret_is_not_ready_and_asks_callers_to_come_again(
    control: Control, org: Org, send: Send
) -> None:
    with pytest.raises(ServiceUnavailable) as later:
        await send("bare", signed("hmac", b"{}"), b"{}")
    assert later.value.retry_after > 1
    assert "KEY" not in later.value.message
    shown = await show_source(control.pool, org.id, "desk", "bare", control.hook_secrets)
    assert (shown.ready, shown.hook_path) == (False, "/v1/hooks/acme/desk/bare")
    assert "TRACE_HOOK_SECRETS__OTHER_KEY" in (shown.not_ready or "")


async def test_deliveries_to_a_paused_source_are_held_and_fire_in_order_when_it_is_resumed(
    control: Control, org: Org, send: Send
) -> None:
    for job in ("plain", "tick"):
        await pause_job(control, org.as_user, "desk", job)
    ids = []
    for number in range(5):
        body = json.dumps(number).encode()
        ids.append(await send("plain", signed("hmac", body), body))
        await send("tick", signed("github", body), body)
    assert await tasks(control) == []
    assert (await show_source(control.pool, org.id, "desk", "plain", {})).held == 5
    await deployed_and_active(control, org, DAG.replace("max_bytes: 1000", "max_bytes: 1001"))
    assert await send("plain", signed("hmac", b"3"), b"3") == ids[3]
    for job in ("plain", "tick"):
        await resume_job(control, org.as_user, "desk", job)
    assert await tasks(control) == [0, 1, 2, 3, 4]
    events = await control.pool.fetch("SELECT payload FROM events ORDER BY cursor_value")
    assert [event["payload"] for event in events] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert not await control.pool.fetchval("SELECT bool_or(held) FROM source_deliveries")


async def test_a_delivery_is_replayed_as_a_new_one_once_per_request(control: Control, org: Org, send: Send) -> None:
    await send("plain", signed("hmac", b'{"n": 7}'), b'{"n": 7}')
    (listed,) = (await list_deliveries(control.pool, org.id, "desk", "plain", SourceDeliveriesQuery())).deliveries
    assert listed.task_status == "Queued"
    request = ReplayDeliveryRequest(request_id=listed.id)
    replay = control.fire_source().replay
    done = [await replay(org.id, "desk", "plain", listed.id, request) for _ in range(2)]
    assert [item.created for item in done] == [True, False]
    assert done[0].task_id == done[1].task_id
    assert await tasks(control) == [{"n": 7}, {"n": 7}]
    with pytest.raises(NotFound):
        await replay(org.id, "desk", "load", listed.id, request)


async def test_a_user_fires_a_webhook_source_with_a_body(control: Control, org: Org) -> None:
    done = await control.fire_source().fire(org.id, "desk", "load", FireRequest(body=[1]))
    assert (done.created, done.task_id is not None, done.delivery_id is not None) == (True, True, True)
    assert await tasks(control) == [[1]]


async def test_old_bodies_are_pruned_and_keys_only_where_a_time_was_signed(control: Control, send: Send) -> None:
    body = b'{"n": 1}'
    for job, scheme in (("load", "standard"), ("plain", "hmac")):
        await send(job, signed(scheme, body), body)
    await control.pool.execute(
        "UPDATE source_deliveries"
        " SET received_at = now() - interval '31 days', expires_at = expires_at - interval '31 days'"
    )
    await PruneSources(control.pool, timedelta(days=90), timedelta(days=30)).once()
    rows = await control.pool.fetch("SELECT job_name, body FROM source_deliveries")
    assert [tuple(row) for row in rows] == [("plain", None)]
    await send("plain", signed("hmac", body), body)
    assert len(await tasks(control)) == 2


async def test_a_delivery_that_arrives_while_its_source_is_resumed_is_not_held_for_ever(
    control: Control, org: Org, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pause_job(control, org.as_user, "desk", "plain")
    stored, go_on = asyncio.Event(), asyncio.Event()
    repeated = Hooks._repeated

    async def slow(*given: Any) -> Any:
        """Stored as held, and not committed yet."""
        stored.set()
        await go_on.wait()
        return await repeated(*given)

    monkeypatch.setattr(Hooks, "_repeated", slow)
    arrives = asyncio.create_task(send("plain", signed("hmac", b"1"), b"1"))
    await stored.wait()
    resumes = asyncio.create_task(resume_job(control, org.as_user, "desk", "plain"))
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"

    async def waits_or_has_ended() -> bool:
        return resumes.done() or bool(await control.pool.fetchval(waits))

    await until(waits_or_has_ended, "the resume waits for the delivery, or has ended")
    go_on.set()
    await asyncio.gather(arrives, resumes)
    assert await control.pool.fetchval("SELECT count(*) FROM source_deliveries WHERE held") == 0
    assert await tasks(control) == [1]
