"""The Gateway forwards calls to three services in one way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.systems.gateway import over
from tracelake.gateway.process import public_api
from tracelake.lite.home import public_pem
from tracelake.lite.user_token import mint_user_token
from tracelake.runtime.listeners import json_response
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.request_middleware import REQUEST_ID, RequestMiddleware
from tracelake.settings import IdentitySettings
from tracelake.wire.calls.user_calls import USER
from tracelake.wire.client import DispatcherClient

pytestmark = pytest.mark.anyio
SUBJECT = "acme|Ærøskøbing"
KEY = ec.generate_private_key(ec.SECP256R1())
IDENTITY = IdentitySettings(user_public_key=public_pem(KEY), service_token=SecretStr("x"))
CALLS = {
    "Dispatcher": ("GET", "/v1/tasks?limit=3", "/internal/v1/tasks?limit=3"),
    "delivery process": ("GET", "/v1/alerts/deliveries?limit=3", "/internal/v1/alerts/deliveries?limit=3"),
    "Query service": ("POST", "/v1/query", "/v1/query"),
}
services = pytest.mark.parametrize("service", CALLS)


@services
async def test_every_service_gets_user_request_id_and_query_and_no_header_of_the_caller(service: str) -> None:
    requests: list[Request] = []

    async def answer(request: Request) -> Response:
        requests.append(request)
        return json_response({"status": "ok"})

    async with upstream(answer) as http, gateway(http) as client:
        headers = {REQUEST_ID: "request-1", "cookie": "a=b", "x-trace-worker-token": "mine"}
        assert (await call(client, service, headers)).status_code == 200
    (request,) = requests
    assert str(request.url).removeprefix("https://test") == CALLS[service][2]
    assert request.headers[USER] == quote(SUBJECT, safe="")
    assert request.headers[REQUEST_ID] == "request-1"
    assert not {"cookie", "authorization", "x-trace-worker-token"} & set(request.headers)


@services
async def test_a_fault_of_any_service_is_a_retryable_503_that_names_it(service: str) -> None:
    async def answer(_: Request) -> Response:
        return Response("Traceback", status_code=500)

    async with upstream(answer) as http, gateway(http) as client:
        failed = await call(client, service, {})
    assert failed.status_code == 503
    assert failed.json()["error"]["message"] == f"the {service} answered 500 to the Gateway"
    async with httpx.AsyncClient(base_url="https://127.0.0.1:1", trust_env=False) as http, gateway(http) as client:
        away = await call(client, service, {})
    assert away.status_code == 503
    assert away.json()["error"]["message"].startswith(f"the {service} does not answer")


async def call(client: httpx.AsyncClient, service: str, headers: dict[str, str]) -> httpx.Response:
    method, path, _ = CALLS[service]
    token = mint_user_token(KEY, IDENTITY, SUBJECT)
    return await client.request(method, path, headers={"authorization": f"Bearer {token}", **headers})


@asynccontextmanager
async def upstream(answer: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with over(Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])) as http:
        yield http


@asynccontextmanager
async def gateway(http: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """With all three services behind one client."""
    app = public_api(DispatcherClient(http), IDENTITY, query=http, delivery=http)
    async with over(RequestMiddleware(app, "gateway", Metrics())) as client:
        yield client
