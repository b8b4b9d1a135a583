"""A user's call about deliveries, carried to the delivery process: with his subject from the verified token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx
from fastapi import Request, Response

from tracelake.errors import ServiceUnavailable, SettingsError
from tracelake.gateway.forward import body_of, relayed
from tracelake.gateway.users import UserGate
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.tls import client_context
from tracelake.runtime.tracing import carried
from tracelake.settings import Settings
from tracelake.wire.client import WORKER_TOKEN
from tracelake.wire.user_calls import USER, Call, named

WHO = "the delivery process"


def carried_over(
    call: Call, gate: UserGate, http: httpx.AsyncClient | None
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        user = await gate.subject(request.headers.get("authorization"))
        path = f"/internal/v1{call.path.format(**named(request.path_params))}"
        body = await body_of(request, call.most_bytes)
        if http is None:
            raise ServiceUnavailable("this system runs without a delivery process")
        url = f"{path}?{request.url.query}" if request.url.query else path
        headers = {USER: quote(user, safe=""), **carried()}
        try:
            answer = await http.request(call.method, url, content=body, headers=headers, timeout=call.seconds)
        except httpx.HTTPError as away:
            raise ServiceUnavailable(f"{WHO} does not answer: {away or type(away).__name__}") from None
        return relayed(answer, WHO)

    endpoint.__name__ = call.name
    return endpoint


@asynccontextmanager
async def delivery_client(settings: Settings) -> AsyncIterator[httpx.AsyncClient | None]:
    url, token = settings.endpoints.delivery_internal, settings.identity.worker_token
    if url is None:
        yield None
        return
    if token is None:
        raise SettingsError("identity.worker_token is not set", where="identity.worker_token")
    headers = {WORKER_TOKEN: token.get_secret_value()}
    verify = client_context(settings.tls.ca)
    async with AsyncClient(base_url=url, headers=headers, verify=verify, timeout=10) as http:
        yield http
