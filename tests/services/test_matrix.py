"""Every identity at every route of every internal listener: each opens exactly the calls of its own row."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.dispatcher.control import HOLLOW, NOTHING
from tests.support.identity.service_tokens import TOKENS
from tests.support.systems.services import PLATFORM_ADMIN, Services, services_of, shown_by
from tracelake.delivery.routes import delivery_api
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.dispatcher.http.task_routes import task_api
from tracelake.domain.access.service_tokens import TokenListener, derive_token
from tracelake.lite.user_token import mint_user_token
from tracelake.settings import IdentitySettings, UdfSettings
from tracelake.udf.process import runner_api
from tracelake.wire.calls.user_calls import USER
from tracelake.wire.client import DispatcherClient
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.service.calls import SERVICE_CALLS, SERVICES, ServiceCall
from tracelake.wire.service.headers import SERVICE_TOKEN

pytestmark = pytest.mark.anyio

HEALTH = {"/healthz", "/readyz"}


@pytest.fixture
async def services(state_db: str, queue_db: str, data_db: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services_of(state_db, queue_db, data_db, tmp_path) as made:
        yield made


def routes_of(app: Any) -> set[tuple[str, str]]:
    return {(method, route.path) for route in app.routes for method in route.methods - {"HEAD"}} - {
        ("GET", path) for path in HEALTH
    }


def rows_of(listener: str) -> set[tuple[str, str]]:
    return {(call.method, call.path) for call in SERVICE_CALLS.values() if call.listener == listener}


def test_every_row_is_a_route_of_its_listener_and_every_route_has_a_row() -> None:
    apps = {
        "dispatcher": internal_api(HOLLOW),
        "delivery": delivery_api(NOTHING, DispatcherClient(NOTHING), NOTHING),
        "runner": runner_api(NOTHING, UdfSettings()).app,
    }
    for listener, app in apps.items():
        assert routes_of(app) == rows_of(listener), listener


async def test_every_row_of_the_query_service_is_a_route(services: Services) -> None:
    for call in (call for call in SERVICE_CALLS.values() if call.listener == "query"):
        assert (await services.call(call, {})).status_code == 401, call


@pytest.mark.parametrize("service", [*SERVICES, "dispatcher"])
async def test_a_service_opens_exactly_the_calls_of_its_row(services: Services, service: str) -> None:
    for call in SERVICE_CALLS.values():
        may = not call.services or service in call.services
        assert await services.answers(call, shown_by(service, call)) == may, (service, call)


def impostors(user: str, task: str, call: ServiceCall) -> dict[str, dict[str, str]]:
    """What callers show who are no service, or not one that this listener knows."""
    named = {USER: PLATFORM_ADMIN}
    other: TokenListener = "dispatcher" if call.listener == "query" else "query"
    return {
        "no_token": {},
        "only_the_name_of_a_user": named,
        "user_token": {"authorization": f"Bearer {user}", **named},
        "user_token_in_place_of_a_services": {SERVICE_TOKEN: user, **named},
        "capability_of_a_task": {SERVICE_TOKEN: task, CAPABILITY_HEADER: task, **named},
        "capability_as_bearer": {"authorization": f"Bearer {task}", **named},
        "wrong_token": {SERVICE_TOKEN: f"{TOKENS['gateway']}x", **named},
        "empty_token": {SERVICE_TOKEN: "", **named},
        "token_of_the_gateway_for_another_listener": {SERVICE_TOKEN: derive_token(TOKENS["gateway"], other), **named},
    }


@pytest.mark.parametrize("who", list(impostors("", "", next(iter(SERVICE_CALLS.values())))))
async def test_no_other_identity_opens_any_call(services: Services, who: str) -> None:
    user = mint_user_token(ec.generate_private_key(ec.SECP256R1()), IdentitySettings(), PLATFORM_ADMIN)
    capability = (await services.claimed()).capability_token
    for call in SERVICE_CALLS.values():
        answer = await services.call(call, impostors(user, capability, call)[who])
        assert (answer.status_code == 401) == bool(call.services), (call, answer.text)


async def test_no_service_opens_the_apis_of_tasks(services: Services) -> None:
    task = await services.claimed()
    fence: dict[str, Any] = {
        "task_id": str(task.task.task_id),
        "attempt": task.attempt,
        "lease_token": str(task.lease_token),
    }
    calls = [("dispatcher_task", path) for _, path in routes_of(task_api(HOLLOW, NOTHING)) if "/task/" in path]
    whole: dict[str, dict[str, Any]] = {
        "complete": {"status": "Completed"},
        "events": {"events": []},
        "logs": {"lines": []},
    }
    for listener, path in [*sorted(calls), ("query_task", "/v1/task/query")]:
        if path.endswith("complete-batch"):  # its items have tokens of their own
            continue
        body: dict[str, Any] = (
            fence | whole.get(path.rpartition("/")[2], {}) | ({"sql": "SELECT 1"} if "query" in path else {})
        )
        for token in TOKENS.values():
            for headers in ({SERVICE_TOKEN: token}, {CAPABILITY_HEADER: token}, {"authorization": f"Bearer {token}"}):
                answer = await services.http[listener].post(path, json=body, headers=headers)
                assert answer.status_code in {400, 401}, (path, answer.text)
    status = await services.walk.control.pool.fetchval(
        "SELECT status::text FROM tasks WHERE id = $1", task.task.task_id
    )
    assert status == "Running"
