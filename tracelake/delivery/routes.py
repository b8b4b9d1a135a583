"""The internal API of the delivery process: users' calls about deliveries, forwarded by the Gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.delivery.work_items import CHANNEL
from tracelake.errors import Conflict, NotFound, Unauthenticated
from tracelake.runtime.listeners import json_response, listener_app
from tracelake.runtime.metrics import OPENMETRICS_TEXT, Metrics
from tracelake.store.db import OUTAGES, answers, unavailable
from tracelake.store.queries import queries
from tracelake.wire.calls.read_call import read_body, read_query, require_role
from tracelake.wire.calls.user_calls import CALLS, USER, Call, named
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.identity import UserAnswer
from tracelake.wire.record_call import AtDispatcher, recorded_in
from tracelake.wire.service.gate import DispatcherGate, guarded, named_user
from tracelake.wire.user.alerts import DeliveryList, DeliveryQuery, DeliveryRetried, DeliveryRow

Verb = Callable[[asyncpg.Pool, UUID, Mapping[str, str], Any], Awaitable[Any]]
"""Called with the pool, the organisation of the user, the parts of the path and the query."""


def delivery_api(pool: asyncpg.Pool, dispatcher: DispatcherClient, metrics: Metrics) -> Starlette:
    async def figures(request: Request) -> Response:
        del request
        return Response(metrics.text(), media_type=OPENMETRICS_TEXT)

    calls = [
        Route(f"/internal/v1{call.path}", _endpoint(pool, dispatcher, call), methods=[call.method])
        for call in CALLS.values()
        if call.service == "delivery"
    ]
    gate = DispatcherGate(dispatcher.service_of)
    routes = guarded("delivery", [*calls, Route("/metrics", figures, methods=["GET"])], gate)
    return listener_app(routes, lambda: answers(pool), OUTAGES, unavailable)


def _endpoint(pool: asyncpg.Pool, dispatcher: DispatcherClient, call: Call) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        user, path = await _user(request, dispatcher), named(request.path_params)
        async with recorded_in(AtDispatcher.of(dispatcher.http, call, request), reads=call.method == "GET"):
            require_role(user.role, call)
            query = read_query(request, call)
            await read_body(request, call)
            return json_response(await VERBS[call.name](pool, user.org_id, path, query))

    return endpoint


async def _user(request: Request, dispatcher: DispatcherClient) -> UserAnswer:
    """The user that the Gateway named; the Dispatcher returns organisation and role, for each call."""
    try:
        return await dispatcher.user(named_user(request))
    except NotFound:
        raise Unauthenticated("the token is valid, but its user is not known here", where=f"header {USER}") from None


async def list_deliveries(pool: asyncpg.Pool, org_id: UUID, query: DeliveryQuery) -> DeliveryList:
    found = await pool.fetch(
        queries("deliveries")["list_deliveries"],
        org_id,
        query.status,
        query.alert,
        query.channel,
        query.before,
        query.limit + 1,
    )
    rows = [DeliveryRow(**dict(row)) for row in found[: query.limit]]
    return DeliveryList(deliveries=rows, next=rows[-1].id if len(found) > query.limit else None)


async def retry_delivery(pool: asyncpg.Pool, org_id: UUID, delivery: UUID) -> DeliveryRetried:
    """Whatever ended it: it is sent though it is old, with all its attempts again."""
    sql = queries("deliveries")
    if await pool.fetchval(sql["retry"], org_id, delivery) is None:
        status = await pool.fetchval(sql["status_of"], org_id, delivery)
        if status is None:
            raise NotFound("no such delivery", where=str(delivery))
        raise Conflict(f"the delivery is {status}: only one that failed or was too old is sent again")
    await pool.execute(sql["wake"], CHANNEL)
    return DeliveryRetried(id=delivery, status="Pending")


VERBS: Mapping[str, Verb] = {
    "list_deliveries": lambda pool, org, _, query: list_deliveries(pool, org, query),
    "retry_delivery": lambda pool, org, path, _: retry_delivery(pool, org, UUID(path["delivery"])),
}
