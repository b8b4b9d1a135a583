"""Refused users, tokens and services are in the audit: once a minute each, with how often, whoever tries how much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.systems.gateway import System, over, system
from tests.support.waiting import SECONDS
from tracelake.dispatcher.audit.link import LinkAudit
from tracelake.dispatcher.audit.refusals import StoreRefusals
from tracelake.domain.access.service_tokens import hash_token
from tracelake.errors import ServiceUnavailable
from tracelake.gateway.process import public_api
from tracelake.gateway.refusals import send_counts, sending
from tracelake.lite.user_token import mint_user_token
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.refusals import MOST_KEPT, OTHERS, Refusal, RefusalCounts
from tracelake.wire.service.headers import SERVICE_TOKEN

pytestmark = pytest.mark.anyio

READER, ADMIN, PLATFORM = "acme|reader", "acme|admin", "rival|admin"


@dataclass(frozen=True)
class Refusing:
    trace: System
    counts: RefusalCounts
    gateway: httpx.AsyncClient
    dispatcher: DispatcherClient

    async def ask(self, token: str | None, times: int = 1) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        for _ in range(times):
            assert (await self.gateway.get("/v1/tasks", headers=headers)).status_code == 401

    async def stored(self) -> list[dict[str, Any]]:
        await send_counts(self.counts, self.dispatcher.store_refusals)
        return await entries(self.trace)


async def entries(trace: System) -> list[dict[str, Any]]:
    rows = await trace.control.pool.fetch(
        "SELECT o.slug AS org, e.actor, e.object, e.origin, e.outcome, e.code, e.detail"
        "  FROM audit_entries e JOIN orgs o ON o.id = e.org_id WHERE e.action = 'identity' ORDER BY e.id"
    )
    return [dict(row) for row in rows]


def entry(org: str, actor: str, kind: str, refusals: int = 1) -> dict[str, Any]:
    shared = {"origin": "127.0.0.1", "outcome": "refused", "code": "unauthenticated"}
    return {"org": org, "actor": actor, "object": kind, "detail": {"refusals": refusals}, **shared}


def shown(token: str) -> str:
    return f"token {hash_token(token).hex()[:16]}"


@pytest.fixture
async def refusing(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Refusing]:
    async with system(state_db, queue_db, tmp_path) as trace:
        await trace.control.pool.execute("UPDATE users SET platform_admin = true WHERE external_id = $1", PLATFORM)
        counts, dispatcher = RefusalCounts(), DispatcherClient(trace.inside)
        async with over(public_api(dispatcher, trace.identity, refusals=counts)) as gateway:
            yield Refusing(trace, counts, gateway, dispatcher)


async def test_a_forged_token_is_stored_for_the_platform_by_its_hash_with_how_often_it_was_shown(
    refusing: Refusing,
) -> None:
    forged = mint_user_token(ec.generate_private_key(ec.SECP256R1()), refusing.trace.identity, ADMIN)
    await refusing.ask(forged, times=7)
    assert await refusing.stored() == [entry("rival", shown(forged), "user_token", 7)]


async def test_an_unknown_subject_of_a_valid_token_is_stored_for_the_platform(refusing: Refusing) -> None:
    await refusing.ask(refusing.trace.token("stranger"), times=2)
    assert await refusing.stored() == [entry("rival", "stranger", "unknown_user", 2)]


async def test_a_removed_user_is_stored_in_the_organisation_that_it_was_of(refusing: Refusing) -> None:
    (user,) = (await refusing.trace.got(ADMIN, "GET", "/v1/users", params={"subject": READER}))["users"]
    await refusing.trace.got(ADMIN, "DELETE", f"/v1/users/{user['id']}")
    await refusing.ask(refusing.trace.token(READER))
    assert await refusing.stored() == [entry("acme", READER, "unknown_user")]


async def test_a_revoked_personal_token_is_stored_in_its_organisation_and_an_unknown_one_for_the_platform(
    refusing: Refusing,
) -> None:
    revoked = (await refusing.trace.got(ADMIN, "POST", "/v1/tokens", json={"name": "robot"}))["token"]
    await refusing.trace.got(ADMIN, "DELETE", "/v1/tokens/robot")
    unknown = f"trace_pat_{'x' * 43}"
    await refusing.ask(revoked)
    await refusing.ask(unknown)
    assert await refusing.stored() == [
        entry("acme", shown(revoked), "personal_token"),
        entry("rival", shown(unknown), "personal_token"),
    ]


async def test_calls_without_a_token_and_calls_of_users_are_not_stored(refusing: Refusing) -> None:
    await refusing.ask(None)
    headers = {"authorization": f"Bearer {refusing.trace.token(READER)}"}
    assert (await refusing.gateway.get("/v1/tasks", headers=headers)).status_code == 200
    assert (await refusing.gateway.get("/v1/users", headers=headers)).status_code == 403
    assert await refusing.stored() == []


async def test_a_caller_with_ever_new_tokens_makes_few_entries_which_count_all_of_them(refusing: Refusing) -> None:
    for number in range(3 * MOST_KEPT):
        await refusing.ask(f"{number}.{uuid4()}.x")
    found = await refusing.stored()
    assert len(found) == MOST_KEPT + 1
    assert sum(row["detail"]["refusals"] for row in found) == 3 * MOST_KEPT
    assert {row["actor"] for row in found if row["origin"] == OTHERS} == {OTHERS}
    assert await refusing.stored() == found  # nothing is sent twice


async def test_a_refused_token_of_a_service_is_stored_by_the_dispatcher_itself(refusing: Refusing) -> None:
    trace, store = refusing.trace, StoreRefusals(refusing.trace.control.pool, refusing.trace.control.refusals)
    for _ in range(3):
        answer = await trace.internal.get("/internal/task-fetch", headers={SERVICE_TOKEN: "wrong"})
        assert answer.status_code == 401
    assert await entries(trace) == []
    assert await store.once() == 0
    assert await entries(trace) == [entry("rival", shown("wrong"), "service_token", 3)]


async def test_counts_that_could_not_be_sent_are_sent_later(refusing: Refusing) -> None:
    async def down(refusals: Sequence[Refusal]) -> int:
        raise ServiceUnavailable(f"{len(refusals)} refusals, and no Dispatcher")

    await refusing.ask("a.b.c")
    await send_counts(refusing.counts, down)
    await refusing.ask("a.b.c")
    assert await refusing.stored() == [entry("rival", shown("a.b.c"), "user_token", 2)]


async def test_the_gateway_sends_now_and_then_and_what_is_left_when_it_ends(refusing: Refusing) -> None:
    sent = asyncio.Event()

    async def send(refusals: Sequence[Refusal]) -> int:
        stored = await refusing.dispatcher.store_refusals(refusals)
        sent.set()
        return stored

    async with sending(refusing.counts, send, every=0.01):
        await refusing.ask("a.b.c")
        await asyncio.wait_for(sent.wait(), SECONDS)
    async with sending(refusing.counts, send):
        await refusing.ask("d.e.f")
    assert [row["actor"] for row in await entries(refusing.trace)] == [shown("a.b.c"), shown("d.e.f")]


async def test_the_entries_are_linked_and_listed_as_others(refusing: Refusing) -> None:
    await refusing.ask("a.b.c")
    await refusing.stored()
    await LinkAudit(refusing.trace.control.pool).once()
    (listed,) = (await refusing.trace.got(PLATFORM, "GET", "/v1/audit"))["entries"]
    assert (listed["action"], listed["object"], listed["outcome"]) == ("identity", "user_token", "refused")
    assert (await refusing.trace.got(ADMIN, "GET", "/v1/audit"))["entries"] == []
