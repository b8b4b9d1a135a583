"""The middleware of every listener: each request gets an id, is counted and timed, and is a span if tracing is on.

It costs a request some microseconds: what it counts with is found once for each route, and kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from itertools import count
from secrets import token_hex
from typing import Any, Final

import msgspec
import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracelake.errors import InvalidRequest
from tracelake.runtime.logs import is_debugging, set_log_fields
from tracelake.runtime.metrics import Metrics, Tally
from tracelake.runtime.tracing import is_tracing, server_span, set_attributes

log = structlog.get_logger()

REQUEST_ID: Final = "x-request-id"
NOWHERE: Final = "(none)"
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_HEADER: Final = REQUEST_ID.encode()
IDENTITY: Final = frozenset({b"authorization", b"x-trace-task-capability", b"x-trace-worker-token", b"x-trace-user"})
"""Headers with the caller's identity."""
_GIVEN: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def address_of(request: Request) -> str:
    """The address from which the caller is connected."""
    return request.client.host if request.client else "unknown"


class RequestMiddleware:
    """An ASGI application around that of a listener."""

    def __init__(self, app: ASGIApp, listener: str, metrics: Metrics) -> None:
        self._app = app
        self._listener = listener
        self._metrics = metrics
        self._routes = Routes(getattr(app, "routes", ()))
        self._kept: dict[tuple[str, str], Tally] = {}
        self._ids = (f"{start}-{number:x}" for start in (token_hex(4),) for number in count(1))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given(scope["headers"]) or next(self._ids)
        set_log_fields(request=request_id)
        answer = _Answer(send, request_id)
        began = time.perf_counter()
        try:
            if (repeated := _repeated_identity(scope["headers"])) is not None:
                await _refuse_repeated(repeated, answer)
            elif is_tracing():
                await self._traced(scope, receive, answer, request_id)
            else:
                await self._app(scope, receive, answer)
        finally:
            self._note(scope, answer.status, time.perf_counter() - began)

    async def _traced(self, scope: Scope, receive: Receive, answer: _Answer, request_id: str) -> None:
        method, route = scope["method"], self._routes.template(scope["path"])
        with server_span(f"{method} {route}", scope["headers"], listener=self._listener, request=request_id):
            await self._app(scope, receive, answer)
            set_attributes(status=answer.status)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        key = (scope["method"], self._routes.template(scope["path"]))
        found = self._kept.get(key)
        if found is None:
            found = self._tally(*key)
        found.add(status, seconds)
        if is_debugging():
            log.debug("answered", listener=self._listener, method=key[0], route=key[1], status=status, seconds=seconds)

    def _tally(self, method: str, route: str) -> Tally:
        known = method in METHODS
        found = self._metrics.http.of(self._listener, method if known else "other", route)
        if known:
            self._kept[method, route] = found
        return found


class Routes:
    """From a path to the route's template, so that what a caller puts into a path never becomes a label."""

    def __init__(self, routes: Iterable[Any]) -> None:
        known = [item for item in routes if getattr(item, "path_regex", None) is not None]
        self._plain: dict[str, str] = {item.path: item.path for item in known if "{" not in item.path}
        self._patterns: list[tuple[re.Pattern[str], str]] = [
            (item.path_regex, item.path) for item in known if "{" in item.path
        ]

    def template(self, path: str) -> str:
        found = self._plain.get(path)
        if found is not None:
            return found
        return next((template for regex, template in self._patterns if regex.match(path)), NOWHERE)


class _Answer:
    """Passes the answer on, notes its status and puts the request's id on it."""

    __slots__ = ("_header", "_send", "status")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._header = (_HEADER, request_id.encode())
        self.status = 500  # what the server answers when the application ends without a word

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"].append(self._header)
        await self._send(message)


def _repeated_identity(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """A header with the caller's identity, if it is repeated."""
    seen = set()
    for name, _ in headers:
        if name in IDENTITY:
            if name in seen:
                return name
            seen.add(name)
    return None


async def _refuse_repeated(name: bytes, send: Send) -> None:
    """A proxy in front of this listener may have read the other one of the two."""
    refusal = InvalidRequest("this header may be sent once", where=f"header {name.decode()}", hint="send one of them")
    body = msgspec.json.encode({"error": refusal.as_dict()})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _given(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The caller's own id of the request, if its characters cannot break a log line."""
    for name, value in headers:
        if name == _HEADER:
            return value.decode() if _GIVEN.fullmatch(value) else None
    return None
