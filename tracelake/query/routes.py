"""The two listeners of the Query service: for tasks with their capability token, and for users through the Gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.capability.verifier import Verifier
from tracelake.domain.access.grants import QUERY
from tracelake.errors import Forbidden, NotFound, Unauthenticated
from tracelake.query.answer import QueryAnswerer
from tracelake.query.diff.compare import DatasetDiffer
from tracelake.query.encode import Encoder, as_arrow
from tracelake.query.limits.while_permitted import while_permitted
from tracelake.query.openapi import document
from tracelake.query.verify.verify import DatasetVerifier
from tracelake.runtime.listeners import cancel_on_disconnect, json_response
from tracelake.wire.calls.read_call import read_message, read_query, require_role
from tracelake.wire.calls.user_calls import CALLS, USER, Call, named
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.queries import ARROW, QueryAnswer, QueryRequest, TaskQueryRequest
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.record_call import AtDispatcher, recorded_in
from tracelake.wire.service.gate import named_user
from tracelake.wire.service.headers import ServiceUser
from tracelake.wire.user.diff import DiffQuery
from tracelake.wire.user.ledger import VerifyQuery

if TYPE_CHECKING:
    import pyarrow as pa


def task_route(answerer: QueryAnswerer, verifier: Verifier, encoder: Encoder) -> Route:
    async def query(request: Request) -> Response:
        body = await read_message(request, TaskQueryRequest)
        claims = await verifier.verify(request.headers.get(CAPABILITY_HEADER))
        if claims.task_id != body.task_id:
            raise Forbidden("the token is another task's", where="/task_id")
        if claims.attempt != body.attempt:
            raise Forbidden("the token is another attempt's", where="/attempt")
        if QUERY not in claims.grants.endpoints:
            raise Forbidden("the token does not grant queries", where="/v1/task/query")
        return await _answered(request, encoder, answerer.for_task(claims, body))

    return Route("/v1/task/query", query, methods=["POST"])


def user_route(answerer: QueryAnswerer, encoder: Encoder) -> Route:
    async def query(request: Request) -> Response:
        user = named_user(request)
        body = await read_message(request, QueryRequest)
        return await _answered(request, encoder, answerer.for_user(user, body))

    return Route("/v1/query", query, methods=["POST"])


def verify_route(verifier: DatasetVerifier, dispatcher: DispatcherClient, rights_seconds: float) -> Route:
    """Verifies a page of a dataset's commits; ends when the caller hangs up."""
    call = CALLS["verify_dataset"]

    async def verify(request: Request) -> Response:
        user = await _permitted(request, call, dispatcher)
        dataset, query = named(request.path_params)["dataset"], read_query(request, call)
        if not isinstance(query, VerifyQuery):
            raise TypeError(type(query))
        work = while_permitted(
            lambda: dispatcher.dataset(user, dataset), verifier.verify(user, dataset, query), rights_seconds
        )
        return json_response(await cancel_on_disconnect(request, work))

    return Route(f"/internal/v1{call.path}", verify, methods=[call.method])


def diff_route(differ: DatasetDiffer, dispatcher: DispatcherClient, rights_seconds: float) -> Route:
    """Compares a dataset at two commits; ends when the caller hangs up."""
    call = CALLS["diff_dataset"]

    async def diff(request: Request) -> Response:
        user = await _permitted(request, call, dispatcher)
        dataset, query = named(request.path_params)["dataset"], read_query(request, call)
        if not isinstance(query, DiffQuery):
            raise TypeError(type(query))
        work = while_permitted(
            lambda: dispatcher.dataset(user, dataset), differ.diff(user, dataset, query), rights_seconds
        )
        return json_response(await cancel_on_disconnect(request, work))

    return Route(f"/internal/v1{call.path}", diff, methods=[call.method])


async def _permitted(request: Request, call: Call, dispatcher: DispatcherClient) -> ServiceUser:
    """The user that the Gateway named, if their role allows the call."""
    user = named_user(request)
    try:
        found = await dispatcher.user(user)
    except NotFound:
        raise Unauthenticated("the user is not known here", where=f"header {USER}") from None
    async with recorded_in(AtDispatcher.of(dispatcher.http, call, request), reads=True):
        require_role(found.role, call)
    return user


def openapi_route() -> Route:
    async def openapi(request: Request) -> Response:
        del request
        return json_response(document())

    return Route("/internal/openapi.json", openapi, methods=["GET"])


async def _answered(
    request: Request, encoder: Encoder, work: Coroutine[Any, Any, tuple[QueryAnswer, pa.Table | None]]
) -> Response:
    """As the caller wants it."""
    answer, table = await cancel_on_disconnect(request, work)
    if table is not None and ARROW in request.headers.get("accept", ""):
        return Response(await asyncio.to_thread(as_arrow, answer, table), media_type=ARROW)
    return Response(await encoder.json(answer, table), media_type="application/json")
