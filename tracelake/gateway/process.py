"""`trace gateway`: the public API. It has no routes for `/v1/task/*` and `/internal/*`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import httpx
from fastapi import FastAPI, Request, Response

from tracelake.errors import InvitationExpired, NotFound, Unauthenticated
from tracelake.gateway.first_logins import FirstLogins
from tracelake.gateway.forward import Upstream, forward_call, forward_query
from tracelake.gateway.hooks import forward_hook
from tracelake.gateway.openapi import DescribedListener, hook_operation, query_operation
from tracelake.gateway.refusals import counting, sending
from tracelake.gateway.user_tokens import UserTokens
from tracelake.gateway.users import WHERE, UserGate, unknown_user
from tracelake.runtime.listeners import HANDLERS, Listener, health_routes, json_response, open_listeners
from tracelake.runtime.process import Process, wait_for_service
from tracelake.settings import IdentitySettings, LoginRule, Settings, TlsSettings
from tracelake.wire.calls.user_calls import CALLS
from tracelake.wire.client import DispatcherClient, dispatcher_client, service_client
from tracelake.wire.internal.identity import UserAnswer
from tracelake.wire.internal.refusals import RefusalCounts
from tracelake.wire.openapi import answers, operation
from tracelake.wire.service.headers import ServiceUser
from tracelake.wire.service.token import ServiceToken

BESIDE_SECONDS: Final = 60.0
NO_RULES: Final[Mapping[str, LoginRule]] = {}


async def main(process: Process) -> None:
    settings = process.settings
    async with (
        dispatcher_client(settings) as dispatcher,
        service_client(settings, settings.endpoints.query_internal, "query", _longest_query(settings)) as query,
        service_client(settings, settings.endpoints.delivery_internal, "delivery") as delivery,
    ):
        await wait_for_service(process, "the Dispatcher", dispatcher.ready)
        refusals, rules = RefusalCounts(), settings.login_rules
        services = settings.tls, query, delivery
        app = public_api(dispatcher, settings.identity, *services, refusals=refusals, login_rules=rules)
        service = Listener("gateway", settings.gateway.host, settings.gateway.port, app)
        opened = open_listeners([service], settings.tls, metrics=process.metrics, limits=settings.http)
        async with sending(refusals, dispatcher.store_refusals), opened as addresses:
            process.ready(f"open at {addresses['gateway']}")
            await process.stop.wait()


def public_api(
    dispatcher: DispatcherClient,
    identity: IdentitySettings,
    tls: TlsSettings = TlsSettings(),  # noqa: B008 - frozen
    query: httpx.AsyncClient | None = None,
    delivery: httpx.AsyncClient | None = None,
    *,
    refusals: RefusalCounts | None = None,
    login_rules: Mapping[str, LoginRule] = NO_RULES,
) -> FastAPI:
    app = DescribedListener(
        title="Trace", docs_url=None, redoc_url=None, openapi_url="/v1/openapi.json", redirect_slashes=False
    )
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Unauthenticated, counting(refusals or RefusalCounts()))
    app.router.routes.extend(health_routes(dispatcher.ready))
    first_logins = FirstLogins(login_rules, dispatcher.user_login)
    gate = UserGate(identity, tls, UserTokens(dispatcher.user_token), first_logins)
    token = ServiceToken(identity)
    upstreams = {
        "dispatcher": Upstream("Dispatcher", dispatcher.http, partial(token.user_at, "dispatcher")),
        "delivery": Upstream("delivery process", delivery, partial(token.user_at, "delivery")),
        "query": Upstream("Query service", query, partial(token.user_at, "query")),
    }

    @app.get(
        "/v1/me",
        summary="The user of the token, with organisation and role",
        response_class=Response,
        openapi_extra={"operationId": "me", "tags": ["me"], "responses": answers(UserAnswer)},
    )
    async def me(request: Request) -> Response:
        subject = await gate.subject(request)
        try:
            return json_response(await dispatcher.user(ServiceUser(subject)))
        except NotFound:
            raise unknown_user(subject) from None
        except InvitationExpired as expired:
            raise InvitationExpired(expired.message, where=WHERE, hint=expired.hint) from None

    app.add_api_route(
        "/v1/query",
        forward_query(gate, upstreams["query"]),
        methods=["POST"],
        summary="Query by SQL; rows as JSON, or as Arrow by `Accept`, or exported as Parquet",
        response_class=Response,
        openapi_extra=query_operation(),
    )
    app.add_api_route(
        "/v1/hooks/{org}/{dag}/{job}",
        forward_hook(dispatcher),
        methods=["POST"],
        status_code=202,
        summary="Deliver to a webhook source: signed by the sender, as the source's `scheme` says; no token",
        response_class=Response,
        openapi_extra=hook_operation(),
    )
    for call in CALLS.values():
        app.add_api_route(
            f"/v1{call.path}",
            forward_call(call, gate, upstreams[call.service]),
            methods=[call.method],
            summary=call.summary,
            response_class=Response,
            openapi_extra=operation(call),
        )
    return app


def _longest_query(settings: Settings) -> float:
    """What a query may take, its turn, and the way there and back."""
    limits = settings.query
    return max(limits.timeout_seconds, limits.export_timeout_seconds) + limits.wait_seconds + BESIDE_SECONDS
