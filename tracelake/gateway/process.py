"""`trace gateway`: the public door. What lies behind `/v1/task/*` and `/internal/*` does not exist here."""

from __future__ import annotations

import httpx
from fastapi import FastAPI, Request, Response

from tracelake.errors import NotFound, Unauthenticated
from tracelake.gateway.delivery import carried_over, delivery_client
from tracelake.gateway.forward import forwarded
from tracelake.gateway.openapi import DescribedListener, query_operation
from tracelake.gateway.query import asked, query_client
from tracelake.gateway.users import STRANGER, WHERE, UserGate
from tracelake.runtime.listeners import HANDLERS, Listener, health_routes, json_response, open_listeners
from tracelake.runtime.process import Process, until_answers
from tracelake.settings import IdentitySettings, TlsSettings
from tracelake.wire.client import DispatcherClient, dispatcher_client
from tracelake.wire.openapi import answers, operation
from tracelake.wire.task_messages import UserAnswer
from tracelake.wire.user_calls import CALLS


async def main(process: Process) -> None:
    settings = process.settings
    async with (
        dispatcher_client(settings) as dispatcher,
        query_client(settings) as query,
        delivery_client(settings) as delivery,
    ):
        await until_answers(process, "the Dispatcher", dispatcher.ready)
        app = public_api(dispatcher, settings.identity, settings.tls, query, delivery)
        service = Listener("gateway", settings.gateway.host, settings.gateway.port, app)
        async with open_listeners([service], settings.tls, metrics=process.metrics, limits=settings.http) as addresses:
            process.ready(f"open at {addresses['gateway']}")
            await process.stop.wait()


def public_api(
    dispatcher: DispatcherClient,
    identity: IdentitySettings,
    tls: TlsSettings = TlsSettings(),  # noqa: B008 - frozen
    query: httpx.AsyncClient | None = None,
    delivery: httpx.AsyncClient | None = None,
) -> FastAPI:
    app = DescribedListener(
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
            forwarded(call, gate, dispatcher) if call.service == "dispatcher" else carried_over(call, gate, delivery),
            methods=[call.method],
            summary=call.summary,
            response_class=Response,
            openapi_extra=operation(call),
        )
    return app
