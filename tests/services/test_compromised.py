"""Attacks by a process that was taken over: with its token, and all that it receives, it reaches what its row says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.identity.service_tokens import TOKENS, as_service, proven_user, store_service_token
from tests.support.systems.services import PLATFORM_ADMIN, Services, claim_body, services_of
from tests.support.verbs import trigger
from tracelake.domain.access.service_tokens import LISTENERS, derive_token, hash_token, prove_user
from tracelake.wire.calls.user_calls import CALLS, USER
from tracelake.wire.service.calls import SERVICE_CALLS, SERVICES
from tracelake.wire.service.headers import PROOF, SERVICE_TOKEN

pytestmark = pytest.mark.anyio

TAKEN_OVER = [service for service in SERVICES if service != "gateway"]


@pytest.fixture
async def services(state_db: str, queue_db: str, data_db: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services_of(state_db, queue_db, data_db, tmp_path) as made:
        yield made


async def a_task(services: Services) -> UUID:
    walk = services.walk
    await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
    await walk.until("work", ["Queued"])
    await walk.until_outbox_is_empty()
    found: UUID = await walk.control.pool.fetchval(
        "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work'"
    )
    return found


async def a_channel(services: Services) -> dict[str, Any]:
    """An alert channel with a secret, as the delivery process asks for it."""
    inside = services.http["dispatcher"]
    headers = {**as_service("gateway"), USER: PLATFORM_ADMIN}
    channel = {"name": "ops", "url": "https://example.com/hook", "secret": "the secret of the channel"}
    made = await inside.post("/internal/v1/alerts/channels", json=channel, headers=headers)
    assert made.status_code == 200, made.text
    alert = {"name": "whales", "severity": "info", "channels": ["ops"]}
    defined = await inside.post("/internal/v1/alerts/definitions", json=alert, headers=headers)
    target = {
        "org_id": str(services.walk.org.id),
        "alert_definition_id": defined.json()["alert_definition_id"],
        "channel": "ops",
    }
    return {"targets": [target]}


@pytest.mark.parametrize("service", TAKEN_OVER)
async def test_it_acts_for_nobody(services: Services, service: str) -> None:
    """By no call of users, at any listener, whatever it writes into the headers that only the Gateway writes."""
    proofs = ("", prove_user(TOKENS[service], PLATFORM_ADMIN, "query", 9e9), "9999999999." + "0" * 64)
    for call in CALLS.values():
        known = SERVICE_CALLS[call.service, call.method, f"/internal/v1{call.path}"]
        for proof in proofs:
            headers = {**as_service(service), USER: PLATFORM_ADMIN, **({PROOF: proof} if proof else {})}
            answer = await services.call(known, headers)
            assert answer.status_code == 403, (call.name, answer.text)
    for path in ("/internal/user?external_id=test|acme", "/internal/user"):
        headers = {**as_service(service), USER: PLATFORM_ADMIN}
        assert (await services.http["dispatcher"].get(path, headers=headers)).status_code in {400, 403}
    body = {"tables": [{"name": "orders"}]}
    headers = {**as_service(service), USER: PLATFORM_ADMIN}
    relations = await services.http["dispatcher"].post("/internal/query/relations", json=body, headers=headers)
    assert relations.status_code == 403, relations.text


@pytest.mark.parametrize("service", [item for item in TAKEN_OVER if item != "worker"])
async def test_it_claims_no_task_of_the_workers(services: Services, service: str) -> None:
    task = await a_task(services)
    control = services.walk.control
    await control.pool.execute("UPDATE service_tokens SET runtimes = '{ecs_udf}' WHERE service = 'runner'")
    control.after_commit.service_tokens.notify()
    answer = await services.http["dispatcher"].post(
        "/internal/task-claim", json=claim_body(task), headers=as_service(service)
    )
    if service == "runner":
        assert answer.json() == {"status": "NotClaimed", "reason": "NotFound"}
    else:
        assert answer.status_code == 403
    assert await services.walk.statuses("work") == ["Queued"]


@pytest.mark.parametrize("service", [item for item in TAKEN_OVER if item != "delivery"])
async def test_it_reads_no_secret_of_a_webhook(services: Services, service: str) -> None:
    targets = await a_channel(services)
    inside = services.http["dispatcher"]
    refused = await inside.post("/internal/alerts/targets", json=targets, headers=as_service(service))
    assert refused.status_code == 403
    needed = await inside.post("/internal/alerts/targets", json=targets, headers=as_service("delivery"))
    assert needed.json()["targets"][0]["secret"] == "the secret of the channel"


async def test_a_delivery_process_sees_secrets_only_of_alerts_and_channels_it_names_together(
    services: Services,
) -> None:
    targets = await a_channel(services)
    foreign = await services.walk.control.pool.fetchval("INSERT INTO orgs (name, slug) VALUES ('r', 'r') RETURNING id")
    for wrong in ({"org_id": str(foreign)}, {"channel": "other"}, {"alert_definition_id": str(uuid4())}):
        body = {"targets": [{**targets["targets"][0], **wrong}]}
        answer = await services.http["dispatcher"].post(
            "/internal/alerts/targets", json=body, headers=as_service("delivery")
        )
        assert "the secret" not in answer.text, wrong


@pytest.mark.parametrize("listener", ["query", "delivery"])
async def test_what_the_gateway_sends_it_opens_no_other_listener(services: Services, listener: Any) -> None:
    """A compromised Query service or delivery process receives the Gateway's calls, and may repeat what they show."""
    received = {
        SERVICE_TOKEN: derive_token(TOKENS["gateway"], listener),
        **proven_user(PLATFORM_ADMIN, listener).headers,
    }
    others = {"dispatcher", "query", "delivery", "runner"} - {listener}
    for call in SERVICE_CALLS.values():
        if call.listener in others and call.services:
            assert (await services.call(call, received)).status_code == 401, call


async def test_it_acts_only_for_the_users_whose_calls_it_received_and_only_where_it_must(services: Services) -> None:
    """The proof that the Query service received is for one user; the delivery process cannot use it, nor on writes."""
    pool, inside = services.walk.control.pool, services.http["dispatcher"]
    await pool.execute(
        "INSERT INTO users (org_id, external_id, role) VALUES ($1, 'other', 'admin')", services.walk.org.id
    )
    proof = {PROOF: proven_user(PLATFORM_ADMIN, "query").proof}
    body: dict[str, Any] = {"tables": []}
    for user, status in ((PLATFORM_ADMIN, 200), ("other", 403)):
        headers = {**as_service("query"), USER: user, **proof}
        answer = await inside.post("/internal/query/relations", json=body, headers=headers)
        assert answer.status_code == status, answer.text
    stolen = {**as_service("delivery"), **proof}
    assert (await inside.get("/internal/user?external_id=test|acme", headers=stolen)).status_code == 403
    write = {**as_service("query"), USER: PLATFORM_ADMIN, **proof}
    assert (await inside.post("/internal/v1/users", json={"subject": "x"}, headers=write)).status_code == 403


async def test_the_proofs_of_a_revoked_gateway_end_with_it(services: Services) -> None:
    pool, inside = services.walk.control.pool, services.http["dispatcher"]
    headers = {**as_service("query"), **proven_user(PLATFORM_ADMIN, "query").headers}
    path = "/internal/query/relations"
    body: dict[str, Any] = {"tables": []}
    assert (await inside.post(path, json=body, headers=headers)).status_code == 200
    await pool.execute("UPDATE service_tokens SET revoked_at = now() WHERE service = 'gateway'")
    services.walk.control.after_commit.service_tokens.notify()
    assert (await inside.post(path, json=body, headers=headers)).status_code == 403


async def test_it_learns_of_tokens_only_what_its_own_listener_received(services: Services) -> None:
    """`/internal/service-token` says whose a token is: not of what another listener received."""
    await store_service_token(services.walk.control.pool, "gateway", "second", "second")
    services.walk.control.after_commit.service_tokens.notify()
    for service in ("query", "delivery"):
        for listener in LISTENERS:
            shown = hash_token(derive_token("second", listener)).hex()
            answer = await services.http["dispatcher"].post(
                "/internal/service-token", json={"token_hash": shown}, headers=as_service(service)
            )
            assert answer.status_code == (200 if listener == service else 404), (service, listener)
