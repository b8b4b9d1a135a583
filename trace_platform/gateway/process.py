"""`trace gateway`: the public door. What lies behind `/v1/task/*` and `/internal/*` does not exist here."""

from __future__ import annotations

import httpx
from fastapi import FastAPI, Request, Response

from trace_platform.client import DispatcherClient, dispatcher_client
from trace_platform.contracts import UserAnswer
from trace_platform.doors import HANDLERS, Door, health_routes, json_response, open_doors
from trace_platform.errors import NotFound, Unauthenticated
from trace_platform.gateway.delivery import carried_over, delivery_client
from trace_platform.gateway.forward import forwarded
from trace_platform.gateway.openapi import DescribedDoor, query_operation
from trace_platform.gateway.query import asked, query_client
from trace_platform.gateway.users import STRANGER, WHERE, UserGate
from trace_platform.openapi import answers, operation
from trace_platform.process import Process, until_answers
from trace_platform.settings import IdentitySettings, TlsSettings
from trace_platform.user_calls import CALLS


async def main(process: Process) -> None:
    settings = process.settings
    async with (
        dispatcher_client(settings) as dispatcher,
        query_client(settings) as query,
        delivery_client(settings) as delivery,
    ):
        await until_answers(process, "the Dispatcher", dispatcher.ready)
        app = public_door(dispatcher, settings.identity, settings.tls, query, delivery)
        door = Door("gateway", settings.gateway.host, settings.gateway.port, app)
        async with open_doors([door], settings.tls, metrics=process.metrics, limits=settings.http) as addresses:
            process.ready(f"open at {addresses['gateway']}")
            await process.stop.wait()


def public_door(
    dispatcher: DispatcherClient,
    identity: IdentitySettings,
    tls: TlsSettings = TlsSettings(),  # noqa: B008 - frozen
    query: httpx.AsyncClient | None = None,
    delivery: httpx.AsyncClient | None = None,
) -> FastAPI:
    app = DescribedDoor(
        title="Trace", docs_url=None, redoc_url=None, openapi_url="/v1/openapi.json", redirect_slashes=False
    )
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.router.routes.extend(health_routes(dispatcher.ready))
    gate = UserGate(identity, tls)

    @app.get(
        "/v1/me",
        summary="The user that the token stands for, with organisation and role",
        response_class=Response,
        openapi_extra={"operationId": "me", "tags": ["me"], "responses": answers(UserAnswer)},
    )
    async def me(request: Request) -> Response:
        subject = await gate.subject(request.headers.get("authorization"))
        try:
            return json_response(await dispatcher.user(subject))
        except NotFound:
            raise Unauthenticated(STRANGER, where=WHERE) from None

    app.add_api_route(
        "/v1/query",
        asked(gate, query),
        methods=["POST"],
        summary="Ask by SQL; rows as JSON, or as Arrow by `Accept`, or exported as Parquet",
        response_class=Response,
        openapi_extra=query_operation(),
    )
    for call in CALLS.values():
        app.add_api_route(
            f"/v1{call.path}",
            forwarded(call, gate, dispatcher) if call.door == "dispatcher" else carried_over(call, gate, delivery),
            methods=[call.method],
            summary=call.summary,
            response_class=Response,
            openapi_extra=operation(call),
        )
    return app
