"""A user's question, carried to the Query service: with his subject from the verified token, and what he accepts."""

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
from tracelake.runtime.listeners import while_wanted
from tracelake.runtime.tls import client_context
from tracelake.runtime.tracing import carried
from tracelake.settings import Settings
from tracelake.wire.client import WORKER_TOKEN
from tracelake.wire.query_messages import ARROW
from tracelake.wire.user_calls import USER

BESIDE_SECONDS = 60.0
"""Above what a question may take: its turn, and the way there and back."""


def asked(gate: UserGate, http: httpx.AsyncClient | None) -> Callable[[Request], Awaitable[Response]]:
    async def query(request: Request) -> Response:
        user = await gate.subject(request.headers.get("authorization"))
        accept = ARROW if ARROW in request.headers.get("accept", "") else "application/json"
        headers = {USER: quote(user, safe=""), "accept": accept, **carried()}
        body = await body_of(request)
        if http is None:
            raise ServiceUnavailable("this system runs without a Query service")
        try:
            answer = await while_wanted(request, http.post("/v1/query", content=body, headers=headers))
        except httpx.HTTPError as away:
            raise ServiceUnavailable(f"the Query service does not answer: {away or type(away).__name__}") from None
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
