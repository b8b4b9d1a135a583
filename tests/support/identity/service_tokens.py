"""A token of each service, and clients that show the one which a call needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote

import asyncpg
import httpx

from tracelake.domain.access.service_tokens import TokenListener, prove_user, token_hashes
from tracelake.store.first_start import LocalToken
from tracelake.wire.calls.user_calls import USER
from tracelake.wire.service.calls import CLAIMING, SERVICE_CALLS, SERVICES
from tracelake.wire.service.headers import PROOF, SERVICE_TOKEN, ServiceUser

TOKENS: Final[Mapping[str, str]] = {service: f"a token of the {service}" for service in SERVICES}
RUNTIMES: Final = ("dispatcher", "ecs_platform", "ecs_udf", "lambda", "parked", "elsewhere")
"""Whose tasks the workers of tests may claim."""


def as_service(service: str) -> dict[str, str]:
    return {SERVICE_TOKEN: TOKENS[service]}


def as_gateway(user: str, listener: TokenListener = "dispatcher") -> dict[str, str]:
    """The headers of a call that the Gateway makes for a user."""
    named = ServiceUser(unquote(user)) if listener == "dispatcher" else proven_user(unquote(user), listener)
    return {**as_service("gateway"), **named.headers}


def proven_user(subject: str, listener: TokenListener = "query") -> ServiceUser:
    """As the Gateway names a user to this listener."""
    return ServiceUser(subject, prove_user(TOKENS["gateway"], subject, listener, NOW))


NOW: Final = 10_000_000_000 - 3600.0
"""Proofs of tests hold for ever."""


class AsGateway(httpx.Auth):
    """Shows the Gateway's token, and its proof if the call names a user."""

    def __init__(self, listener: TokenListener) -> None:
        self._listener = listener

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
        user = request.headers.get(USER)
        shown = as_service("gateway") if user is None else as_gateway(user, self._listener)
        request.headers.update({name: value for name, value in shown.items() if name not in request.headers})
        yield request


class AnyService(httpx.Auth):
    """Shows the Dispatcher the token of a service that may make the call, unless the call shows another."""

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
        if SERVICE_TOKEN not in request.headers:
            request.headers[SERVICE_TOKEN] = TOKENS[_service(request)]
        yield request


def _service(request: httpx.Request) -> str:
    for (listener, method, path), call in SERVICE_CALLS.items():
        pattern = re.sub(r"{\w+}", "[^/]+", path)
        if listener == "dispatcher" and method == request.method and re.fullmatch(pattern, request.url.path):
            allowed = call.proven if PROOF in request.headers else call.services - call.proven or call.services
            return next((service for service in SERVICES if service in allowed), "monitor")
    return "monitor"


def local_tokens() -> list[LocalToken]:
    """As `trace up` has them in files."""
    return [
        LocalToken(service, token, lambda: "", RUNTIMES if service in CLAIMING else None)
        for service, token in TOKENS.items()
    ]


async def store_service_tokens(pool: asyncpg.Pool) -> None:
    for token in local_tokens():
        await store_service_token(pool, token.service, token.token)


async def store_service_token(pool: asyncpg.Pool, service: str, token: str, name: str = "test") -> None:
    made = await pool.fetchval(
        "INSERT INTO service_tokens (service, name, runtimes) VALUES ($1::text::service_identity, $2, $3) RETURNING id",
        service,
        name,
        list(RUNTIMES) if service in CLAIMING else None,
    )
    for listener, hashed in token_hashes(token).items():
        await pool.execute("INSERT INTO service_token_hashes VALUES ($1, $2, $3)", made, listener, hashed)
