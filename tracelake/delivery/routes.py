"""The internal API of the delivery process: users' calls about deliveries, forwarded by the Gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.delivery.manage import list_deliveries, retry_delivery
from tracelake.errors import NotFound, Unauthenticated
from tracelake.runtime.listeners import bearer, json_response, listener_app, require_our_token
from tracelake.runtime.metrics import OPENMETRICS_TEXT, Metrics
from tracelake.settings import IdentitySettings
from tracelake.store.db import OUTAGES, answers, unavailable
from tracelake.wire.client import WORKER_TOKEN, DispatcherClient
from tracelake.wire.identity_messages import UserAnswer
from tracelake.wire.read_call import read_body, read_query, require_role
from tracelake.wire.user_calls import CALLS, USER, Call, named


@dataclass(frozen=True)
class DeliveryCall:
    pool: asyncpg.Pool
    org: UUID
    path: Mapping[str, str]
    query: Any


Verb = Callable[[DeliveryCall], Awaitable[Any]]


def delivery_api(
    pool: asyncpg.Pool, dispatcher: DispatcherClient, identity: IdentitySettings, metrics: Metrics
) -> Starlette:
    async def figures(request: Request) -> Response:
        require_our_token(bearer(request), identity, "header authorization")
        return Response(metrics.text(), media_type=OPENMETRICS_TEXT)

    calls = [
        Route(f"/internal/v1{call.path}", _endpoint(pool, dispatcher, identity, call), methods=[call.method])
        for call in CALLS.values()
        if call.service == "delivery"
    ]
    routes = [*calls, Route("/metrics", figures, methods=["GET"])]
    return listener_app(routes, lambda: answers(pool), OUTAGES, unavailable)


def _endpoint(
    pool: asyncpg.Pool, dispatcher: DispatcherClient, identity: IdentitySettings, call: Call
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        require_our_token(request.headers.get(WORKER_TOKEN), identity, f"header {WORKER_TOKEN}")
        user = await _user(request, dispatcher)
        require_role(user.role, call)
        path, query = named(request.path_params), read_query(request, call)
        await read_body(request, call)
        return json_response(await VERBS[call.name](DeliveryCall(pool, user.org_id, path, query)))

    return endpoint


async def _user(request: Request, dispatcher: DispatcherClient) -> UserAnswer:
    """The user that the Gateway named; the Dispatcher returns organisation and role, for each call."""
    subject = unquote(request.headers.get(USER, ""))
    try:
        if subject and "\0" not in subject:
            return await dispatcher.user(subject)
    except NotFound:
        pass
    raise Unauthenticated("the token is valid, but its user is not known here", where=f"header {USER}")


VERBS: Mapping[str, Verb] = {
    "list_deliveries": lambda call: list_deliveries(call.pool, call.org, call.query),
    "retry_delivery": lambda call: retry_delivery(call.pool, call.org, UUID(call.path["delivery"])),
}
