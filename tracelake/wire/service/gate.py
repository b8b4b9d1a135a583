"""Decides at an internal listener who may make a call, by the table of `calls.py`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.domain.access.service_tokens import hash_token
from tracelake.errors import Forbidden, NotFound, Unauthenticated
from tracelake.runtime.listeners import bearer
from tracelake.wire.calls.user_calls import USER
from tracelake.wire.service.calls import SERVICE_CALLS, ListenerName, ServiceCall
from tracelake.wire.service.headers import PROOF, SERVICE_TOKEN, ServiceUser

REMEMBERED_SECONDS: Final = 2.0
"""How long a service trusts what the Dispatcher said about a token: a revoked one can be used for as long."""
MOST_REMEMBERED: Final = 1_000

_CALLER: Final = "trace.service"


@dataclass(frozen=True)
class ServiceCaller:
    """The service that makes a call."""

    service: str
    runtimes: frozenset[str] = frozenset()
    """Of which it may claim tasks."""


class Gate(Protocol):
    async def caller(self, request: Request) -> ServiceCaller:
        """The service whose token the request shows; Unauthenticated unless the token holds."""


Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(listener: ListenerName, routes: Sequence[Route], gate: Gate) -> list[Route]:
    """The routes, each open to the services of its row alone; one without a row is an error."""
    return [
        Route(route.path, _guard(route.endpoint, SERVICE_CALLS[listener, method, route.path], gate), methods=[method])
        for route in routes
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def caller_of(request: Request) -> ServiceCaller:
    """The service that makes this call, which its listener has checked."""
    found: ServiceCaller = request.scope[_CALLER]
    return found


def shown_token(request: Request) -> str:
    """In the header of services or, as Prometheus sends it, `Authorization: Bearer`."""
    token = request.headers.get(SERVICE_TOKEN) or bearer(request)
    if token is None:
        raise Unauthenticated("the internal API needs a service's token", where=f"header {SERVICE_TOKEN}")
    return token


def named_user(request: Request) -> ServiceUser:
    """The user that the caller names. The header is percent-encoded: a subject may be any text."""
    subject = unquote(request.headers.get(USER, ""))
    if not subject or "\0" in subject:
        raise Unauthenticated("no user is named", where=f"header {USER}")
    return ServiceUser(subject, request.headers.get(PROOF, ""))


def _guard(endpoint: Endpoint, call: ServiceCall, gate: Gate) -> Endpoint:
    if not call.services:
        return endpoint

    async def guard(request: Request) -> Response:
        caller = await gate.caller(request)
        if caller.service not in call.services:
            raise Forbidden(f"the service {caller.service} may not make this call", where=f"{call.method} {call.path}")
        request.scope[_CALLER] = caller
        return await endpoint(request)

    return guard


class DispatcherGate:
    """Asks the Dispatcher whose a token is, at most every few seconds for each token."""

    def __init__(self, service_of: Callable[[bytes], Awaitable[str]]) -> None:
        self._service_of = service_of
        self._known: dict[bytes, tuple[str, float]] = {}

    async def caller(self, request: Request) -> ServiceCaller:
        shown = hash_token(shown_token(request))
        service, until = self._known.get(shown, ("", 0.0))
        return ServiceCaller(service if time.monotonic() < until else await self._ask(shown))

    async def _ask(self, shown: bytes) -> str:
        self._known.pop(shown, None)
        began = time.monotonic()
        try:
            service = await self._service_of(shown)
        except NotFound:
            raise Unauthenticated(UNKNOWN, where=f"header {SERVICE_TOKEN}") from None
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[shown] = service, began + REMEMBERED_SECONDS
        return service


UNKNOWN: Final = "the service's token is unknown, has expired or was revoked"
