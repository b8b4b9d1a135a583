"""Forwards a user's call to the service that answers it, with the user's subject from the verified token.

The path is built from checked parts and the headers are ours, so that nothing a caller writes can reach another route
of an internal listener or name another user.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
from fastapi import Request, Response

from tracelake.errors import InvitationExpired, ServiceUnavailable
from tracelake.gateway.users import WHERE, UserGate, unknown_user
from tracelake.runtime.listeners import cancel_on_disconnect
from tracelake.runtime.logs import current_log_fields
from tracelake.runtime.read_body import bounded, read_bounded
from tracelake.runtime.request_middleware import REQUEST_ID, address_of
from tracelake.runtime.tracing import trace_headers
from tracelake.wire.calls.user_calls import USER, Call, named
from tracelake.wire.internal.queries import ARROW
from tracelake.wire.message import MAX_BODY_BYTES
from tracelake.wire.service.headers import CLIENT, ServiceUser

PASSED_THROUGH = frozenset({200, 400, 403, 404, 409, 422, 429, 503, 504})
"""Statuses of a service that the user gets; any other is a fault between the Gateway and the service."""


@dataclass(frozen=True)
class Upstream:
    """A service behind the Gateway."""

    name: str
    http: httpx.AsyncClient | None
    """None: this system runs without it."""
    named: Callable[[str], ServiceUser] = ServiceUser
    """Names a user, by the subject, so that the service may act for him."""

    async def send(
        self,
        method: str,
        url: str,
        user: str,
        *,
        body: bytes | AsyncIterator[bytes],
        headers: Mapping[str, str],
        seconds: float | None = None,
    ) -> Response:
        """The service's answer. `seconds`: how long it may take, unless the client has its own limit."""
        if self.http is None:
            raise ServiceUnavailable(f"this system runs without a {self.name}")
        timeout = httpx.USE_CLIENT_DEFAULT if seconds is None else httpx.Timeout(seconds, connect=10, pool=10)
        headers = {**headers, **self.named(user).headers, **_headers()}
        try:
            answer = await self.http.request(method, url, content=body, headers=headers, timeout=timeout)
        except httpx.HTTPError as outage:
            raise ServiceUnavailable(f"the {self.name} does not answer: {outage or type(outage).__name__}") from None
        return self._response(answer, user)

    def _response(self, answer: httpx.Response, user: str) -> Response:
        status, content = answer.status_code, answer.content
        if status in PASSED_THROUGH:
            kind = answer.headers.get("content-type", "application/json")
            again = answer.headers.get("retry-after")
            headers = {"retry-after": again} if again else None
            return Response(content, status_code=status, media_type=kind, headers=headers)
        if status == 401:  # noqa: PLR2004 - the status of Unauthenticated
            error = _error(content)
            if error.get("code") == InvitationExpired.code:
                raise InvitationExpired(error["message"], where=WHERE, hint=error.get("hint"))
            if error.get("where") == f"header {USER}":
                raise unknown_user(user)
        raise ServiceUnavailable(f"the {self.name} answered {status} to the Gateway", hint="try again in a moment")


def forward_call(call: Call, gate: UserGate, upstream: Upstream) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        user = await gate.subject(request)
        path = f"/internal/v1{call.path.format(**named(request.path_params))}"
        url = f"{path}?{request.url.query}" if request.url.query else path
        most = call.most_bytes
        body = bounded(request.stream(), most) if call.takes_bytes else await read_bounded(request.stream(), most)
        headers = {"content-type": call.takes_bytes or _content_type(request), CLIENT: address_of(request)}
        return await upstream.send(call.method, url, user, body=body, headers=headers, seconds=call.seconds)

    endpoint.__name__ = call.name
    return endpoint


def forward_query(gate: UserGate, upstream: Upstream) -> Callable[[Request], Awaitable[Response]]:
    """A query ends when its caller hangs up."""

    async def query(request: Request) -> Response:
        user = await gate.subject(request)
        headers = {"accept": ARROW if ARROW in request.headers.get("accept", "") else "application/json"}
        body = await read_bounded(request.stream(), MAX_BODY_BYTES)
        return await cancel_on_disconnect(request, upstream.send("POST", "/v1/query", user, body=body, headers=headers))

    return query


def _headers() -> dict[str, str]:
    """The same request id at every listener."""
    request_id = current_log_fields().get("request")
    return {
        **({} if request_id is None else {REQUEST_ID: str(request_id)}),
        **trace_headers(),
    }


def _content_type(request: Request) -> str:
    """One of two: JSON, or the YAML of a DAG."""
    return "application/json" if "json" in request.headers.get("content-type", "json") else "application/yaml"


def _error(content: bytes) -> dict[str, Any]:
    try:
        return msgspec.convert(msgspec.json.decode(content)["error"], dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError):
        return {}
