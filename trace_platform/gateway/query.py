"""A user's question, carried to the Query service: with his subject from the verified token, and what he accepts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx
from fastapi import Request, Response

from trace_platform.client import WORKER_TOKEN
from trace_platform.doors import while_wanted
from trace_platform.errors import DoorUnavailable, SettingsError
from trace_platform.gateway.forward import body_of, relayed
from trace_platform.gateway.users import UserGate
from trace_platform.http_client import AsyncClient
from trace_platform.observe.tracing import carried
from trace_platform.query_contracts import ARROW
from trace_platform.settings import Settings
from trace_platform.tls import client_context
from trace_platform.user_calls import USER

BESIDE_SECONDS = 60.0
"""Above what a question may take: its turn, and the way there and back."""


def asked(gate: UserGate, http: httpx.AsyncClient | None) -> Callable[[Request], Awaitable[Response]]:
    async def query(request: Request) -> Response:
        user = await gate.subject(request.headers.get("authorization"))
        accept = ARROW if ARROW in request.headers.get("accept", "") else "application/json"
        headers = {USER: quote(user, safe=""), "accept": accept, **carried()}
        body = await body_of(request)
        if http is None:
            raise DoorUnavailable("this system runs without a Query service")
        try:
            answer = await while_wanted(request, http.post("/v1/query", content=body, headers=headers))
        except httpx.HTTPError as away:
            raise DoorUnavailable(f"the Query service does not answer: {away or type(away).__name__}") from None
        return relayed(answer, "the Query service")

    return query


@asynccontextmanager
async def query_client(settings: Settings) -> AsyncIterator[httpx.AsyncClient | None]:
    url, token = settings.endpoints.query_internal, settings.identity.worker_token
    if url is None:
        yield None
        return
    if token is None:
        raise SettingsError("identity.worker_token is not set", where="identity.worker_token")
    limits = settings.query
    longest = max(limits.timeout_seconds, limits.export_timeout_seconds) + limits.wait_seconds + BESIDE_SECONDS
    headers = {WORKER_TOKEN: token.get_secret_value()}
    timeout = httpx.Timeout(longest, connect=10)
    async with AsyncClient(
        base_url=url, headers=headers, verify=client_context(settings.tls.ca), timeout=timeout
    ) as http:
        yield http
