"""A user's call, carried to the Dispatcher: with his subject from the verified token, and nothing else of the caller's.

The path is built anew from checked parts and the headers are ours, so that nothing a caller writes can reach another
route of the internal door or name another user.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import msgspec
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from tracelake.errors import InvalidRequest, ServiceUnavailable, Unauthenticated
from tracelake.gateway.users import STRANGER, WHERE, UserGate
from tracelake.wire.client import DispatcherClient
from tracelake.wire.task_messages import MAX_BODY_BYTES
from tracelake.wire.user_calls import USER, Call, named

PASSED_THROUGH = frozenset({200, 400, 403, 404, 409, 422, 429, 503, 504})
"""Answers of the Dispatcher that are the user's to hear; any other is a fault between us and it."""


def forwarded(call: Call, gate: UserGate, dispatcher: DispatcherClient) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        user = await gate.subject(request.headers.get("authorization"))
        path = call.path.format(**named(request.path_params))
        answer = await dispatcher.ask(
            call.method,
            f"/internal/v1{path}",
            user,
            query=request.url.query,
            body=_passed_on(request, call.most_bytes) if call.takes_bytes else await body_of(request, call.most_bytes),
            content_type=call.takes_bytes or _content_type(request),
            seconds=call.seconds,
        )
        return relayed(answer, "the Dispatcher")

    endpoint.__name__ = call.name
    return endpoint


async def body_of(request: Request, most: int = MAX_BODY_BYTES) -> bytes:
    return b"".join([chunk async for chunk in _passed_on(request, most)])


async def _passed_on(request: Request, most: int) -> AsyncIterator[bytes]:
    """The body as it comes, no more of it than is allowed."""
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > most:
                raise InvalidRequest(f"the body is larger than {most} bytes", where="")
            yield chunk
    except ClientDisconnect:
        raise InvalidRequest("the caller hung up before the body was whole", where="") from None


def _content_type(request: Request) -> str:
    """One of two: JSON, or the YAML of a DAG."""
    return "application/json" if "json" in request.headers.get("content-type", "json") else "application/yaml"


def relayed(answer: httpx.Response, who: str) -> Response:
    status, content = answer.status_code, answer.content
    if status in PASSED_THROUGH:
        kind = answer.headers.get("content-type", "application/json")
        again = answer.headers.get("retry-after")
        return Response(content, status_code=status, media_type=kind, headers={"retry-after": again} if again else None)
    if status == 401 and _where(content) == f"header {USER}":  # noqa: PLR2004 - the status of Unauthenticated
        raise Unauthenticated(STRANGER, where=WHERE)
    raise ServiceUnavailable(f"{who} answered {status} to the Gateway", hint="try again in a moment")


def _where(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)["error"]["where"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
