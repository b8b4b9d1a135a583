"""Every identity at every route of the listeners that callers outside reach: of tasks, and the Gateway's.

The internal listeners are in `test_matrix.py`; tasks, cell by cell, in `test_task_listener_cells.py`; roles of users,
cell by cell, in `tests/gateway/test_permissions.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr

from tests.support.dispatcher.control import HOLLOW, NOTHING, an_org, deployed_and_active
from tests.support.identity.service_tokens import TOKENS, AsGateway
from tests.support.identity.tokens import Key
from tests.support.systems.gateway import over
from tests.support.systems.services import PLATFORM_ADMIN, Services, services_of
from tests.support.systems.walk import DAG
from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.http.task_routes import task_api
from tracelake.domain.access.grants import ALWAYS, QUERY
from tracelake.gateway.process import public_api
from tracelake.lite.home import public_pem
from tracelake.lite.user_token import mint_user_token
from tracelake.settings import IdentitySettings
from tracelake.wire.calls.user_calls import CALLS
from tracelake.wire.client import DispatcherClient
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.service.headers import SERVICE_TOKEN
from tracelake.wire.task.lifecycle import Claimed

pytestmark = pytest.mark.anyio

FENCED: Final[Mapping[str, Mapping[str, Any]]] = {
    "POST /v1/task/heartbeat": {},
    "POST /v1/task/complete": {"status": "Completed"},
    "POST /v1/task/events": {"events": []},
    "POST /v1/task/buffer-publish": {"dataset_uuid": str(uuid4()), "batch_uri": "s3://lake/x"},
    "POST /v1/task/logs": {"first": 0, "lines": []},
    "POST /v1/task/files": {"dataset_uuid": str(uuid4())},
    "POST /v1/task/credentials": {},
    QUERY: {"sql": "SELECT * FROM nothing"},
}
"""Calls that need the capability of the task that they name, with a body that passes as far as that."""
WITHOUT_A_HEADER: Final = {
    "POST /v1/task/complete-batch",  # each item has a token of its own
    "GET /v1/udf/bundle/{sha256}",  # the URL is signed
}
OF_GATEWAY: Final = {("GET", "/v1/me"), ("POST", "/v1/query"), *((c.method, f"/v1{c.path}") for c in CALLS.values())}
"""Calls that need the token of a user."""
WITHOUT_TOKEN: Final = {("GET", "/v1/openapi.json"), ("POST", "/v1/hooks/{org}/{dag}/{job}")}
"""The description of the API; and deliveries, which are signed."""
HEALTH: Final = {("GET", "/healthz"), ("GET", "/readyz")}


@dataclass(frozen=True)
class World:
    services: Services
    gateway: httpx.AsyncClient
    key: ec.EllipticCurvePrivateKey
    identity: IdentitySettings
    own: Claimed
    other: Claimed
    """Another task of the same job."""
    foreign: Claimed
    """A task of another organisation."""

    def user_token(self, subject: str = PLATFORM_ADMIN) -> str:
        return mint_user_token(self.key, self.identity, subject)


@pytest.fixture
async def world(state_db: str, queue_db: str, data_db: str, tmp_path: Path) -> AsyncIterator[World]:
    key = ec.generate_private_key(ec.SECP256R1())
    identity = IdentitySettings(user_public_key=public_pem(key), service_token=SecretStr(TOKENS["gateway"]))
    async with services_of(state_db, queue_db, data_db, tmp_path) as services:
        control = services.walk.control
        rival = await an_org(control.pool, "rival")
        await deployed_and_active(control, rival, DAG)
        claimed = [await services.claimed(), await services.claimed(cursor=2), await services.claimed(rival)]
        query, delivery = services.http["query"], services.http["delivery"]
        query.auth, delivery.auth = AsGateway("query"), AsGateway("delivery")
        app = public_api(DispatcherClient(services.walk.dispatcher.http), identity, query=query, delivery=delivery)
        async with over(app) as gateway:
            yield World(services, gateway, key, identity, *claimed)


def routes_of(app: Any) -> set[tuple[str, str]]:
    return {(method, route.path) for route in app.routes for method in (route.methods or set()) - {"HEAD"}} - HEALTH


def test_every_route_of_the_task_api_is_in_the_tables_above() -> None:
    listed = {tuple(call.split(" ")) for call in [*FENCED, *WITHOUT_A_HEADER] if call != QUERY}
    assert routes_of(task_api(HOLLOW, NOTHING)) == listed


def test_every_route_of_the_gateway_is_in_the_tables_above() -> None:
    app = public_api(DispatcherClient(NOTHING), IdentitySettings(service_token=SecretStr("x")))
    assert routes_of(app) == OF_GATEWAY | WITHOUT_TOKEN


def shown_to_tasks(world: World) -> dict[str, tuple[dict[str, str], int]]:
    """Headers of each identity that is not the task, and the status that every call has for it."""

    def capability(token: str) -> dict[str, str]:
        return {CAPABILITY_HEADER: token}

    good = world.own.capability_token
    claims = parse_token(good).payload
    return {
        "no token": ({}, 401),
        "garbage": (capability("garbage"), 401),
        "signed by a key of its own": (capability(Key().sign(claims)), 401),
        "of another task": (capability(world.other.capability_token), 403),
        "of a task of another organisation": (capability(world.foreign.capability_token), 403),
        "a user": (capability(world.user_token()), 401),
        "a user's bearer token": ({"authorization": f"Bearer {world.user_token()}"}, 401),
        "its own token as a bearer": ({"authorization": f"Bearer {good}"}, 401),
        "its own token as a service's": ({SERVICE_TOKEN: good}, 401),
        **{f"service {name}": (capability(token) | {SERVICE_TOKEN: token}, 401) for name, token in TOKENS.items()},
    }


async def test_only_the_capability_of_the_task_itself_opens_a_call_of_tasks(world: World) -> None:
    for call, body in FENCED.items():
        for who, (headers, status) in shown_to_tasks(world).items():
            answer = await ask_as_task(world, call, body, headers)
            assert answer.status_code == status, (call, who, answer.text)
    granted = decode(parse_token(world.own.capability_token).payload).grants.endpoints
    for call, body in sorted(FENCED.items(), key=lambda item: item[0].endswith("complete")):
        answer = await ask_as_task(world, call, body, {CAPABILITY_HEADER: world.own.capability_token})
        may = call in ALWAYS | granted
        assert ("does not grant" in answer.text) != may, (call, answer.text)
        assert answer.status_code != httpx.codes.UNAUTHORIZED, (call, answer.text)
    assert await status_of(world, world.own) == "Completed"
    assert {await status_of(world, task) for task in (world.other, world.foreign)} == {"Running"}


async def test_no_call_of_tasks_without_a_header_opens_by_the_token_of_another(world: World) -> None:
    wrong = [world.other.capability_token, world.foreign.capability_token, world.user_token(), TOKENS["worker"], "x"]
    item = {**fence(world.own), "status": "Completed"}
    body = {"items": [{"capability_token": token, "completion": item} for token in wrong]}
    answer = await world.services.http["dispatcher_task"].post("/v1/task/complete-batch", json=body)
    assert answer.status_code == httpx.codes.OK, answer.text
    codes = [outcome["error"]["code"] for outcome in answer.json()["outcomes"]]
    assert set(codes) <= {"forbidden", "unauthenticated"}, answer.text
    assert await status_of(world, world.own) == "Running"
    for who, (headers, _) in shown_to_tasks(world).items():
        answer = await world.services.http["dispatcher_task"].get(f"/v1/udf/bundle/{'ab' * 32}", headers=headers)
        assert answer.status_code in {401, 403}, (who, answer.text)


async def test_only_the_token_of_a_user_opens_a_call_of_the_gateway(world: World) -> None:
    shown = await shown_to_gateway(world)
    for method, path in sorted(OF_GATEWAY):
        for who, headers in shown.items():
            body = {"sql": "SELECT 1"} if path == "/v1/query" else None
            answer = await world.gateway.request(method, made_up(path), headers=headers, json=body)
            assert answer.status_code == httpx.codes.UNAUTHORIZED, (method, path, who, answer.text)
    users = {"authorization": f"Bearer {world.user_token()}"}
    for headers in [users, *shown.values()]:
        answer = await world.gateway.post("/v1/hooks/acme/walk/ask", json={}, headers=headers)
        assert answer.status_code == httpx.codes.UNAUTHORIZED, answer.text


async def shown_to_gateway(world: World) -> dict[str, dict[str, str]]:
    """Callers who are no user."""
    pool, user = world.services.walk.control.pool, world.user_token()
    await pool.execute(
        "INSERT INTO users (org_id, external_id, role, removed_at) VALUES ($1, 'gone', 'admin', now())"
        " ON CONFLICT DO NOTHING",
        world.services.walk.org.id,
    )
    old = mint_user_token(world.key, world.identity, PLATFORM_ADMIN, seconds=-60)
    shown = {
        "garbage": "garbage",
        "expired": old,
        "of another issuer's key": mint_user_token(ec.generate_private_key(ec.SECP256R1()), world.identity, "x"),
        "a removed user": world.user_token("gone"),
        "an unknown user": world.user_token("nobody"),
        "an unknown personal token": f"trace_pat_{'A' * 43}",
        "a task": world.own.capability_token,
        **TOKENS,
    }
    return {
        "no token": {},
        "only the name of a user": {"x-trace-user": PLATFORM_ADMIN},
        "the gateway's own headers": {SERVICE_TOKEN: TOKENS["gateway"], "x-trace-user": PLATFORM_ADMIN},
        "a capability": {CAPABILITY_HEADER: world.own.capability_token},
        "a user's token in another header": {CAPABILITY_HEADER: user, SERVICE_TOKEN: user},
        **{who: {"authorization": f"Bearer {token}"} for who, token in shown.items()},
    }


async def ask_as_task(world: World, call: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> httpx.Response:
    _, _, path = call.partition(" ")
    http = world.services.http["query_task" if call == QUERY else "dispatcher_task"]
    return await http.post(path, json={**fence(world.own), **body}, headers=headers)


def fence(task: Claimed) -> dict[str, Any]:
    return {"task_id": str(task.task.task_id), "attempt": task.attempt, "lease_token": str(task.lease_token)}


async def status_of(world: World, task: Claimed) -> str:
    sql = "SELECT status::text FROM tasks WHERE id = $1"
    return str(await world.services.walk.control.pool.fetchval(sql, task.task.task_id))


def made_up(path: str) -> str:
    """With names and ids that nothing has."""
    named = ("dag", "job", "dataset", "alert", "channel", "role", "org", "token", "secret", "queue")
    names = dict.fromkeys(named, "nothing")
    ids = ("request", "task", "publish", "bundle", "backfill", "release", "delivery", "user", "service_token")
    return path.format_map({**names, **dict.fromkeys(ids, str(uuid4())), "kind": "job"})
