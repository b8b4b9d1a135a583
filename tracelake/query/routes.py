"""The two listeners of the Query service: for tasks with their capability token, and for users through the Gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.capability.verifier import Verifier
from tracelake.domain.grants import QUERY
from tracelake.errors import Forbidden, NotFound, Unauthenticated
from tracelake.query.answer import QueryAnswerer
from tracelake.query.diff.compare import DatasetDiffer
from tracelake.query.encode import as_arrow, as_json
from tracelake.query.openapi import document
from tracelake.query.verify.verify import DatasetVerifier
from tracelake.runtime.listeners import cancel_on_disconnect, json_response, require_our_token
from tracelake.settings import IdentitySettings
from tracelake.wire.client import WORKER_TOKEN, DispatcherClient
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.query_messages import ARROW, QueryAnswer, QueryRequest, TaskQueryRequest
from tracelake.wire.read_call import read_message, read_query, require_role
from tracelake.wire.user_calls import CALLS, USER, Call, named
from tracelake.wire.user_diff import DiffQuery
from tracelake.wire.user_ledger import VerifyQuery

if TYPE_CHECKING:
    import pyarrow as pa


def task_route(answerer: QueryAnswerer, verifier: Verifier) -> Route:
    async def query(request: Request) -> Response:
        body = await read_message(request, TaskQueryRequest)
        claims = await verifier.verify(request.headers.get(CAPABILITY_HEADER))
        if claims.task_id != body.task_id:
            raise Forbidden("the token is another task's", where="/task_id")
        if claims.attempt != body.attempt:
            raise Forbidden("the token is another attempt's", where="/attempt")
        if QUERY not in claims.grants.endpoints:
            raise Forbidden("the token does not grant queries", where="/v1/task/query")
        return await _answered(request, answerer.for_task(claims, body))

    return Route("/v1/task/query", query, methods=["POST"])


def user_route(answerer: QueryAnswerer, identity: IdentitySettings) -> Route:
    async def query(request: Request) -> Response:
        require_our_token(request.headers.get(WORKER_TOKEN), identity, f"header {WORKER_TOKEN}")
        subject = _subject(request)
        body = await read_message(request, QueryRequest)
        return await _answered(request, answerer.for_user(subject, body))

    return Route("/v1/query", query, methods=["POST"])


def verify_route(verifier: DatasetVerifier, dispatcher: DispatcherClient, identity: IdentitySettings) -> Route:
    """Verifies a page of a dataset's commits; ends when the caller hangs up."""
    call = CALLS["verify_dataset"]

    async def verify(request: Request) -> Response:
        subject = await _permitted(request, call, dispatcher, identity)
        dataset, query = named(request.path_params)["dataset"], read_query(request, call)
        if not isinstance(query, VerifyQuery):
            raise TypeError(type(query))
        return json_response(await cancel_on_disconnect(request, verifier.verify(subject, dataset, query)))

    return Route(f"/internal/v1{call.path}", verify, methods=[call.method])


def diff_route(differ: DatasetDiffer, dispatcher: DispatcherClient, identity: IdentitySettings) -> Route:
    """Compares a dataset at two commits; ends when the caller hangs up."""
    call = CALLS["diff_dataset"]

    async def diff(request: Request) -> Response:
        subject = await _permitted(request, call, dispatcher, identity)
        dataset, query = named(request.path_params)["dataset"], read_query(request, call)
        if not isinstance(query, DiffQuery):
            raise TypeError(type(query))
        return json_response(await cancel_on_disconnect(request, differ.diff(subject, dataset, query)))

    return Route(f"/internal/v1{call.path}", diff, methods=[call.method])


async def _permitted(request: Request, call: Call, dispatcher: DispatcherClient, identity: IdentitySettings) -> str:
    """The user that the Gateway named, if their role allows the call."""
    require_our_token(request.headers.get(WORKER_TOKEN), identity, f"header {WORKER_TOKEN}")
    subject = _subject(request)
    try:
        user = await dispatcher.user(subject)
    except NotFound:
        raise Unauthenticated("the user is not known here", where=f"header {USER}") from None
    require_role(user.role, call)
    return subject


def _subject(request: Request) -> str:
    """The user that the Gateway named."""
    subject = unquote(request.headers.get(USER, ""))
    if not subject or "\0" in subject:
        raise Unauthenticated("no user is named", where=f"header {USER}")
    return subject


def openapi_route(identity: IdentitySettings) -> Route:
    async def openapi(request: Request) -> Response:
        require_our_token(request.headers.get(WORKER_TOKEN), identity, f"header {WORKER_TOKEN}")
        return json_response(document())

    return Route("/internal/openapi.json", openapi, methods=["GET"])


async def _answered(request: Request, work: Coroutine[Any, Any, tuple[QueryAnswer, pa.Table | None]]) -> Response:
    """As the caller wants it."""
    answer, table = await cancel_on_disconnect(request, work)
    if table is not None and ARROW in request.headers.get("accept", ""):
        return Response(await asyncio.to_thread(as_arrow, answer, table), media_type=ARROW)
    return Response(await asyncio.to_thread(as_json, answer, table), media_type="application/json")
