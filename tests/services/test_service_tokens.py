"""Tokens of services: made and revoked by platform admins, rotated without downtime, refused once revoked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from pydantic import SecretStr

from tests.support.identity.service_tokens import TOKENS, as_service, proven_user, store_service_token
from tests.support.systems.gateway import System, over, system
from tests.support.systems.services import Services, services_of
from tests.support.systems.walk import walking
from tests.support.verbs import trigger
from tests.support.waiting import until
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.dispatcher.identity.known_tokens import KnownTokens
from tracelake.dispatcher.signal import AfterCommit, Changed
from tracelake.domain.access.service_tokens import derive_token, hash_token, prove_user, proven_until
from tracelake.errors import SettingsError
from tracelake.settings import IdentitySettings, load_settings
from tracelake.store.first_start import LocalToken, ensure_first_rows
from tracelake.wire.service import token as module
from tracelake.wire.service.headers import SERVICE_TOKEN, ServiceUser
from tracelake.wire.service.token import ServiceToken
from tracelake.wire.task.lifecycle import Claimed, NotClaimed

pytestmark = pytest.mark.anyio

ADMIN = "acme|admin"
SCRAPE = "/metrics"


@pytest.fixture
async def trace(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    async with system(state_db, queue_db, tmp_path) as made:
        await made.control.pool.execute("UPDATE users SET platform_admin = true WHERE external_id = $1", ADMIN)
        yield made


@pytest.fixture
async def services(state_db: str, queue_db: str, data_db: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services_of(state_db, queue_db, data_db, tmp_path) as made:
        yield made


async def made(trace: System, service: str = "monitor", name: str = "october", **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await trace.got(
        ADMIN, "POST", "/v1/service-tokens", json={"service": service, "name": name, **more}
    )
    return answer


async def scraped(trace: System, token: str, control: Control | None = None) -> int:
    async with over(internal_api(control or trace.control)) as http:
        return (await http.get(SCRAPE, headers={SERVICE_TOKEN: token})).status_code


async def test_a_token_works_until_it_is_revoked_and_the_others_of_its_service_go_on(trace: System) -> None:
    first, second = await made(trace), await made(trace, name="november")
    async with over(internal_api(trace.control)) as http:
        for token in (first["token"], second["token"], derive_token(second["token"], "dispatcher")):
            assert (await http.get(SCRAPE, headers={SERVICE_TOKEN: token})).status_code == 200
        done = await trace.got(ADMIN, "DELETE", f"/v1/service-tokens/{first['id']}")
        assert done == {"id": first["id"], "service": "monitor", "name": "october"}
        assert (await http.get(SCRAPE, headers={SERVICE_TOKEN: first["token"]})).status_code == 401
        assert (await http.get(SCRAPE, headers={SERVICE_TOKEN: second["token"]})).status_code == 200
    assert await trace.refused(ADMIN, "DELETE", f"/v1/service-tokens/{first['id']}") == (404, "not_found")


async def test_a_token_is_stored_as_hashes_and_shown_once(trace: System) -> None:
    token = (await made(trace))["token"]
    listed = await trace.got(ADMIN, "GET", "/v1/service-tokens")
    assert token not in str(listed)
    dumped = [dict(row) for row in await trace.control.pool.fetch("SELECT * FROM service_token_hashes")]
    assert token not in str(dumped)
    hashes = {row["token_hash"] for row in dumped}
    assert {hash_token(token), hash_token(derive_token(token, "query"))} <= hashes


async def test_an_expired_token_is_refused_and_its_name_is_free_again(trace: System) -> None:
    token = await made(trace, days=1)
    assert await scraped(trace, token["token"]) == 200
    await trace.control.pool.execute(
        "UPDATE service_tokens SET created_at = now() - interval '2 days', expires_at = now() - interval '1 day'"
        " WHERE name = 'october'"
    )
    assert await scraped(trace, token["token"]) == 401
    (row,) = [
        row for row in (await trace.got(ADMIN, "GET", "/v1/service-tokens"))["tokens"] if row["name"] == "october"
    ]
    assert row["expired"]
    assert (await made(trace))["id"] != token["id"]


async def test_the_list_shows_when_a_token_was_last_used(trace: System) -> None:
    token = await made(trace)

    async def last_used() -> Any:
        tokens = (await trace.got(ADMIN, "GET", "/v1/service-tokens"))["tokens"]
        return next(row["last_used_at"] for row in tokens if row["id"] == token["id"])

    async with over(internal_api(trace.control)) as http:
        assert await last_used() is None

        async def noted() -> bool:
            await http.get(SCRAPE, headers={SERVICE_TOKEN: token["token"]})
            await http.get(SCRAPE, headers={SERVICE_TOKEN: "unknown"})  # reads the tokens again, and notes the use
            return await last_used() is not None

        await until(noted, "the use of the token is stored")


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"service": "worker", "name": "a"}, "/runtimes"),
        ({"service": "worker", "name": "a", "runtimes": ["ecs_platfrom"]}, "/runtimes"),
        ({"service": "sink", "name": "a", "runtimes": ["ecs_platform"]}, "/runtimes"),
        ({"service": "dispatcher", "name": "a"}, "/service"),
        ({"service": "sink", "name": "Not plain"}, "/name"),
        ({"service": "sink", "name": "a", "days": 0}, "/days"),
    ],
)
async def test_a_token_that_would_have_no_effect_is_refused(trace: System, body: dict[str, Any], where: str) -> None:
    answer = await trace.ask(ADMIN, "POST", "/v1/service-tokens", json=body)
    assert (answer.status_code, answer.json()["error"]["where"]) == (400, where)
    again = {"service": "sink", "name": "test"}
    assert await trace.refused(ADMIN, "POST", "/v1/service-tokens", json=again) == (409, "conflict")


async def test_only_platform_admins_manage_tokens_of_services(trace: System) -> None:
    for user in ("rival|admin", "acme|writer"):
        for method, path in (("GET", ""), ("POST", ""), ("DELETE", f"/{uuid4()}")):
            body = {"json": {"service": "sink", "name": "a"}} if method == "POST" else {}
            assert await trace.refused(user, method, f"/v1/service-tokens{path}", **body) == (403, "forbidden")


async def test_another_replica_refuses_a_revoked_token_when_it_is_notified(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    """By the notification alone: what is in memory does not become too old here."""
    async with (
        walking(state_db, queue_db, tmp_path) as first,
        walking(state_db, queue_db, tmp_path / "two", replica="two", deploys=False) as two,
    ):
        known = KnownTokens(two.control.pool, two.control.after_commit.service_tokens, most_seconds=3600)
        shown = hash_token(TOKENS["sink"])
        assert await known.find(shown, "dispatcher") is not None
        token = await first.control.pool.fetchval("SELECT id FROM service_tokens WHERE service = 'sink'")
        await first.control.pool.execute("UPDATE users SET platform_admin = true")
        headers = {**as_service("gateway"), "x-trace-user": "test|acme"}

        async def listens() -> bool:
            return two.control.metrics.registry.get_sample_value("trace_listening") == 1

        await until(listens, "the other replica listens")
        await first.dispatcher.http.delete(f"/internal/v1/service-tokens/{token}", headers=headers)

        async def refused() -> bool:
            return await known.find(shown, "dispatcher") is None

        await until(refused, "the other replica refuses the token")


async def test_what_is_in_memory_is_read_again_although_no_notification_arrived(trace: System) -> None:
    known = KnownTokens(trace.control.pool, Changed())
    shown = hash_token(TOKENS["sink"])
    assert await known.find(shown, "dispatcher") is not None
    await trace.control.pool.execute("UPDATE service_tokens SET revoked_at = now() WHERE service = 'sink'")

    async def refused() -> bool:
        return await known.find(shown, "dispatcher") is None

    await until(refused, "the token is refused")


async def test_calls_with_a_known_token_make_no_round_trip(trace: System) -> None:
    known = KnownTokens(trace.control.pool, Changed(), most_seconds=3600)
    shown = hash_token(TOKENS["sink"])
    await known.find(shown, "dispatcher")
    trace.control.pool.terminate()
    for _ in range(100):
        assert await known.find(shown, "dispatcher") is not None


async def test_a_revoked_gateway_is_refused_by_every_listener(services: Services) -> None:
    calls = {"dispatcher": "/internal/v1/tasks", "delivery": "/internal/v1/alerts/deliveries"}
    user = {name: proven_user("test|acme", "delivery").headers for name in calls}

    async def statuses() -> list[int]:
        return [
            (await services.http[name].get(path, headers={**as_service("gateway"), **user[name]})).status_code
            for name, path in calls.items()
        ] + [(await services.http["query"].post("/v1/query", json={}, headers=as_service("gateway"))).status_code]

    assert await statuses() == [200, 200, 401], "a query names a user"
    await services.walk.control.pool.execute("UPDATE service_tokens SET revoked_at = now() WHERE service = 'gateway'")

    async def refused() -> bool:
        return await statuses() == [401, 401, 401]

    await until(refused, "every listener refuses the revoked token")


async def test_a_token_that_is_revoked_while_calls_are_in_flight_opens_no_further_one(services: Services) -> None:
    """A call that was accepted is answered; the next one, on the same connection, is refused."""
    walk = services.walk
    mark = (await walk.dispatcher.stops("")).mark
    http = services.http["dispatcher"]
    headers, path = as_service("worker"), "/internal/task-stops"
    waiting = asyncio.create_task(http.get(path, params={"after": mark}, headers=headers))
    await until(lambda: walk.control.after_commit.stops.waiting == 1, "the call waits")
    await walk.control.pool.execute("UPDATE service_tokens SET revoked_at = now() WHERE service = 'worker'")
    walk.control.after_commit.service_tokens.notify()
    assert (await http.get(path, headers=headers)).status_code == 401
    walk.control.after_commit.stops.notify()
    assert (await waiting).json()["changed"]
    assert (await http.get(path, headers=headers)).status_code == 401


async def test_a_process_uses_the_new_token_of_its_file_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    file = tmp_path / "token"
    file.write_text("old\n")
    token = ServiceToken(IdentitySettings(service_token_file=file))
    assert token.for_listener("query") == derive_token("old", "query")
    file.write_text("new\n")
    assert token.for_listener("query") == derive_token("new", "query")
    file.unlink()
    assert token.for_listener("query") == derive_token("new", "query"), "as long as no other can be read"


def test_a_process_without_a_token_or_with_two_says_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="service_token is not set"):
        ServiceToken(IdentitySettings())
    with pytest.raises(SettingsError, match="cannot be read"):
        ServiceToken(IdentitySettings(service_token_file=tmp_path / "none"))
    (tmp_path / "empty").touch()
    with pytest.raises(SettingsError, match="holds no token"):
        ServiceToken(IdentitySettings(service_token_file=tmp_path / "empty"))
    both = {"TRACE_IDENTITY__SERVICE_TOKEN": "x", "TRACE_IDENTITY__SERVICE_TOKEN_FILE": "/y"}
    with pytest.raises(SettingsError, match="both set"):
        load_settings(both, home=tmp_path)


def test_a_start_makes_new_tokens_for_those_that_were_revoked(state_db: str) -> None:
    written: list[str] = []

    def replace_file() -> str:
        written.append("a new token")
        return written[-1]

    token = LocalToken("worker", "an old token", replace_file, ["ecs_platform"])
    for runtimes in (["ecs_platform"], ["elsewhere"]):
        ensure_first_rows(state_db, [replace(token, runtimes=runtimes)])
    with psycopg.connect(state_db) as connection:
        assert connection.execute("SELECT runtimes FROM service_tokens").fetchall() == [(["elsewhere"],)]
        connection.execute("UPDATE service_tokens SET revoked_at = now()")
    ensure_first_rows(state_db, [token])
    assert written == ["a new token"]
    with psycopg.connect(state_db) as connection:
        held = connection.execute("SELECT runtimes FROM service_tokens WHERE revoked_at IS NULL").fetchall()
        assert held == [(["ecs_platform"],)]


async def test_a_claim_gives_only_tasks_of_the_runtimes_of_its_token(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with walking(state_db, queue_db, tmp_path) as walk:
        pool = walk.control.pool
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await walk.until("work", ["Queued"])
        await walk.until_outbox_is_empty()
        task = await pool.fetchval("SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work'")
        await store_service_token(pool, "runner", "of sandboxes", "sandboxes")
        await pool.execute("UPDATE service_tokens SET runtimes = '{ecs_udf}' WHERE name = 'sandboxes'")
        http, shown = walk.dispatcher.http, {SERVICE_TOKEN: "of sandboxes"}
        body = {"task_id": str(task), "worker_id": "w"}
        alone = await http.post("/internal/task-claim", json=body, headers=shown)
        assert alone.json() == {"status": "NotClaimed", "reason": "NotFound"}
        batch = {"task_ids": [str(task)], "worker_id": "w", "claim_id": str(uuid4())}
        several = await http.post("/internal/task-claim-batch", json=batch, headers=shown)
        assert several.json()["answers"] == [{"status": "NotClaimed", "reason": "NotFound"}]
        fetched = await http.get("/internal/task-fetch", params={"task_id": str(task)}, headers=shown)
        assert fetched.status_code == 404
        assert await walk.statuses("work") == ["Queued"]
        (given,) = await walk.dispatcher.claim_batch([task], "w")
        assert isinstance(given, Claimed)
        again = await http.post("/internal/task-claim-batch", json=batch, headers=shown)
        assert again.json()["answers"] == [{"status": "NotClaimed", "reason": "NotFound"}], "nor one that runs"
        (running,) = await walk.dispatcher.claim_batch([task], "w")
        assert running == NotClaimed(reason="AlreadyRunning")


def test_a_proof_is_for_one_user_and_one_service_and_cannot_be_prolonged() -> None:
    keys = [hash_token(derive_token("another", "dispatcher")), hash_token(derive_token("gateway", "dispatcher"))]
    proof = prove_user("gateway", "ada", "query", 1_000_000)
    assert proven_until(proof, keys, "ada", "query") == 1_000_000 + 3600
    assert proven_until(proof, keys, "bob", "query") is None
    assert proven_until(proof, keys, "ada", "delivery") is None
    assert proven_until(proof, keys[:1], "ada", "query") is None
    later = str(2_000_000 + 3600) + proof[proof.index(".") :]
    for forged in (later, "", ".", "1.", f"\u0661{proof[1:]}", f"{proof}0", proof[:-1], proof.replace(".", ".-")):
        assert proven_until(forged, keys, "ada", "query") is None, forged


async def test_a_proof_ends_after_an_hour_and_the_user_may_repeat_the_call(services: Services) -> None:
    old = ServiceUser("test|acme", prove_user(TOKENS["gateway"], "test|acme", "query", time.time() - 3700))
    headers = {**as_service("query"), **old.headers}
    answer = await services.http["dispatcher"].get("/internal/user?external_id=test|acme", headers=headers)
    assert (answer.status_code, answer.json()["error"]["retryable"]) == (503, True)


def test_the_settings_of_a_process_hold_its_token_as_a_secret() -> None:
    assert "hush" not in repr(IdentitySettings(service_token=SecretStr("hush")))


def test_changes_are_counted_and_passed_on_to_other_replicas() -> None:
    changed, sent = AfterCommit().service_tokens, []
    changed.notify_replicas(lambda: sent.append(1))
    changed.notify()
    changed.wake()
    assert (changed.count, sent) == (2, [1])


def test_what_is_sent_to_a_listener_does_not_reveal_the_token() -> None:
    sent = {derive_token("secret", listener) for listener in ("dispatcher", "query", "delivery")}
    assert len(sent) == 3
    assert not any("secret" in token for token in sent)
