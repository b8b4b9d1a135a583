"""Sends a call to an API of the Dispatcher, and raises a refusal as the error that it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import httpx
import msgspec

from tracelake.errors import (
    Busy,
    Conflict,
    Forbidden,
    Incompatible,
    InvalidRequest,
    InvitationExpired,
    LeaseLost,
    NotFound,
    Refused,
    ServiceUnavailable,
    SnapshotTooOld,
    TraceError,
    Unauthenticated,
)
from tracelake.runtime.tracing import NO_HEADERS, trace_headers
from tracelake.wire.message import Message

A = TypeVar("A")

REFUSALS: dict[str, type[TraceError]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        Unauthenticated,
        InvitationExpired,
        Forbidden,
        NotFound,
        Conflict,
        Incompatible,
        LeaseLost,
        SnapshotTooOld,
        Busy,
    )
}
"""What a caller branches on; any other refusal is a Refused."""
TRY_AGAIN = frozenset({httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS})
"""A listener had no time or no capacity for the request, which is not at fault."""


async def send_call(
    http: httpx.AsyncClient, path: str, request: Message, kind: type[A], headers: Mapping[str, str] = NO_HEADERS
) -> A:
    response = await send_body(http, path, msgspec.json.encode(request), headers)
    return msgspec.json.decode(response.content, type=kind)


async def send_body(http: httpx.AsyncClient, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
    """The answer; a refusal is raised as the error it is."""
    try:
        answer = await http.post(path, content=body, headers={**headers, **trace_headers()})
    except httpx.HTTPError as away:
        raise ServiceUnavailable(f"the Dispatcher does not answer: {away or type(away).__name__}") from None
    if answer.is_error:
        raise refusal_of(answer)
    return answer


def refusal_of(answer: httpx.Response) -> TraceError:
    try:
        error: dict[str, Any] = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = {}
    is_final = answer.is_client_error and answer.status_code not in TRY_AGAIN
    otherwise = Refused if is_final else ServiceUnavailable
    return error_of({"message": f"the Dispatcher answered {answer.status_code}", **error}, otherwise)


def error_of(error: Mapping[str, Any], otherwise: type[TraceError]) -> TraceError:
    """The error in an answer, as the class of its code."""
    kind = REFUSALS.get(error.get("code", ""), otherwise)
    return kind(error.get("message") or "no reason was given", where=error.get("where"), hint=error.get("hint"))


def message_of(answer: httpx.Response) -> str:
    try:
        body: Any = answer.json()
        return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
