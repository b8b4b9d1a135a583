"""The two doors of the Query service: tasks with their capability, users by way of the Gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from trace_platform.capability.refusal import CAPABILITY_HEADER
from trace_platform.capability.verifier import Verifier
from trace_platform.client import WORKER_TOKEN
from trace_platform.contracts import MAX_BODY_BYTES, decode
from trace_platform.domain.grants import QUERY
from trace_platform.doors import json_response, require_our_token, while_wanted
from trace_platform.errors import Forbidden, InvalidRequest, Unauthenticated
from trace_platform.query.desk import Desk
from trace_platform.query.encode import as_arrow, as_json
from trace_platform.query.openapi import document
from trace_platform.query_contracts import ARROW, QueryAnswer, QueryRequest, TaskQueryRequest
from trace_platform.settings import IdentitySettings
from trace_platform.user_calls import USER

if TYPE_CHECKING:
    import pyarrow as pa


def task_route(desk: Desk, verifier: Verifier) -> Route:
    async def query(request: Request) -> Response:
        body = decode(await _body(request), TaskQueryRequest)
        claims = await verifier.verify(request.headers.get(CAPABILITY_HEADER))
        if claims.task_id != body.task_id:
            raise Forbidden("the token is another task's", where="/task_id")
        if claims.attempt != body.attempt:
            raise Forbidden("the token is another attempt's", where="/attempt")
        if QUERY not in claims.grants.endpoints:
            raise Forbidden("the token grants nothing that this door gives", where="/v1/task/query")
        return await _answered(request, desk.for_task(claims, body))

    return Route("/v1/task/query", query, methods=["POST"])


def user_route(desk: Desk, identity: IdentitySettings) -> Route:
    async def query(request: Request) -> Response:
        require_our_token(request.headers.get(WORKER_TOKEN), identity, f"header {WORKER_TOKEN}")
        subject = unquote(request.headers.get(USER, ""))
        if not subject or "\0" in subject:
            raise Unauthenticated("no user is named", where=f"header {USER}")
        return await _answered(request, desk.for_user(subject, decode(await _body(request), QueryRequest)))

    return Route("/v1/query", query, methods=["POST"])


def openapi_route(identity: IdentitySettings) -> Route:
    async def openapi(request: Request) -> Response:
        require_our_token(request.headers.get(WORKER_TOKEN), identity, f"header {WORKER_TOKEN}")
        return json_response(document())

    return Route("/internal/openapi.json", openapi, methods=["GET"])


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise InvalidRequest(f"the body is larger than {MAX_BODY_BYTES} bytes", where="")
    except ClientDisconnect:
        raise InvalidRequest("the caller hung up before the body was whole", where="") from None
    return bytes(body)


async def _answered(request: Request, work: Coroutine[Any, Any, tuple[QueryAnswer, pa.Table | None]]) -> Response:
    """As the caller wants it."""
    answer, table = await while_wanted(request, work)
    if table is not None and ARROW in request.headers.get("accept", ""):
        return Response(await asyncio.to_thread(as_arrow, answer, table), media_type=ARROW)
    return Response(await asyncio.to_thread(as_json, answer, table), media_type="application/json")
