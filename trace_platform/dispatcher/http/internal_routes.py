"""The internal door: claims and fetches of workers, users and their calls for the Gateway, keys for verifiers."""

from __future__ import annotations

from uuid import UUID

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trace_platform.contracts import ClaimRequest, DrainAnswer
from trace_platform.dispatcher.claim_task import claimer
from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.drain_sources import drain_sources
from trace_platform.dispatcher.fetch_task import fetch_task
from trace_platform.dispatcher.http.auth import WorkerGate
from trace_platform.dispatcher.http.body import read
from trace_platform.dispatcher.http.openapi import document
from trace_platform.dispatcher.http.user_routes import user_routes
from trace_platform.doors import door_app, json_response
from trace_platform.errors import InvalidRequest, NotFound
from trace_platform.store.db import OUTAGES, answers
from trace_platform.store.identity import find_user
from trace_platform.store.signing_keys import published


def internal_door(control: Control) -> Starlette:
    gate, claim = WorkerGate(control.pool), claimer(control)

    async def task_claim(request: Request) -> Response:
        await gate.require(request)
        return json_response(await claim(await read(request, ClaimRequest)))

    async def task_fetch(request: Request) -> Response:
        await gate.require(request)
        return json_response(await fetch_task(control, _uuid(_parameter(request, "task_id"), "task_id")))

    async def user(request: Request) -> Response:
        await gate.require(request)
        found = await find_user(control.pool, _parameter(request, "external_id"))
        if found is None:
            raise NotFound("no such user", where="query external_id")
        return json_response(found)

    async def openapi(request: Request) -> Response:
        await gate.require(request)
        return json_response(document())

    async def jwks(request: Request) -> Response:
        del request  # public halves: whoever reaches this door may have them
        return json_response(await published(control.pool))

    async def sources_drain(request: Request) -> Response:
        await gate.require(request)
        return json_response(DrainAnswer(told=await drain_sources(control)))

    routes = [
        Route("/internal/sources/drain", sources_drain, methods=["POST"]),
        Route("/internal/task-claim", task_claim, methods=["POST"]),
        Route("/internal/task-fetch", task_fetch, methods=["GET"]),
        Route("/internal/user", user, methods=["GET"]),
        Route("/internal/openapi.json", openapi, methods=["GET"]),
        Route("/internal/jwks/task", jwks, methods=["GET"]),
        *user_routes(control),
    ]
    return door_app(routes, lambda: answers(control.pool), OUTAGES)


def _parameter(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if not value:
        raise InvalidRequest(f"`{name}` is missing", where=f"query {name}")
    return value


def _uuid(text: str, name: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidRequest(f"{text[:80]!r} is not a uuid", where=f"query {name}") from None
