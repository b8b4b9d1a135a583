"""Limits of a listener: connections, requests at once, the size of headers, and time.

uvicorn gives every connection to a protocol class. This one is uvicorn's own for httptools, with the limits that it
leaves to a proxy. Refusals have the shape of the application's own, and `/healthz` is always answered.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tracelake.errors import Busy, InvalidRequest, TooManyConnections, TraceError
from tracelake.settings import HttpSettings

HEALTH: Final = "/healthz"
SLOWEST_BYTES_A_SECOND: Final = 8 * 1024
"""A body that arrives slower than this, on average, is refused."""
LINGER_SECONDS: Final = 5.0
"""How long a caller that was answered before its body was whole may keep sending it."""


class Admission:
    """An ASGI application that refuses requests while as many are in progress as may be."""

    def __init__(self, app: ASGIApp, limits: HttpSettings) -> None:
        self.routes = getattr(app, "routes", ())
        self._app = app
        self._most = limits.requests
        self._now = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == HEALTH:
            await self._app(scope, receive, send)
            return
        if self._now >= self._most:
            await refuse(send, Busy(f"{self._most} requests are in progress", hint="try again in a moment"), 429)
            return
        self._now += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._now -= 1


class _Reading(Enum):
    NOTHING = auto()
    HEADERS = auto()
    BODY = auto()


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *, limits: HttpSettings, **more: Any) -> None:
        super().__init__(**more)
        self._limits = limits
        self._reading = _Reading.HEADERS
        self._chunk = 0
        """Size of the current piece, as far as it may belong to this request."""
        self._received = 0
        self._began = self.loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            self.app = self._over_limit(self.app)
        self._began = self.loop.time()
        self._look_in(self._limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._chunk = len(data) if self._reading is not _Reading.BODY else 0
        self._received += len(data)
        super().data_received(data)
        if self._refused:
            return
        if self._reading is _Reading.NOTHING:
            self._be_idle()
        elif self._reading is _Reading.HEADERS and self._received > self._limits.header_bytes:
            self._refuse_headers()
        elif self._timer is None:
            body = self._reading is _Reading.BODY
            self._look_in(self._limits.stall_seconds if body else self._limits.header_seconds)

    # What the parser calls.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start(_Reading.HEADERS, self._chunk)
        self._chunk = 0  # of a second request in this piece it is not known where it begins

    def on_headers_complete(self) -> None:
        # Most headers arrive in one piece with their body: only a large piece is measured.
        if self._received > self._limits.header_bytes and self._header_bytes() > self._limits.header_bytes:
            self._refuse_headers()
            return
        self._start(_Reading.BODY, 0)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            self._reading = _Reading.NOTHING
            super().on_message_complete()

    # What the transport and the answer call.

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(self._limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def on_response_complete(self) -> None:
        if self._reading is _Reading.BODY:
            self._cancel()
            self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        super().on_response_complete()

    # Time.

    def _start(self, what: _Reading, received: int) -> None:
        self._reading = what
        self._received = received
        self._began = self.loop.time()
        self._cancel()

    def _be_idle(self) -> None:
        """The request is whole. If it was answered earlier, the wait for the next one begins here."""
        self._cancel()
        if not self._is_answering() and self.timeout_keep_alive_task is None and not self.pipeline:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """The rest should have arrived by now, unless this process does not read."""
        self._timer = None
        left = self._allowed_until() - self.loop.time()
        if self.flow.read_paused or (self._reading is _Reading.HEADERS and self._is_answering()):
            self._began = self.loop.time()
            self._look_in(self._limits.stall_seconds)
        elif left > 0:
            self._look_in(left)
        else:
            self._give_up()

    def _allowed_until(self) -> float:
        if self._reading is _Reading.HEADERS:
            return self._began + self._limits.header_seconds
        return self._began + self._limits.stall_seconds + self._received / SLOWEST_BYTES_A_SECOND

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # Refusals.

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, InvalidRequest(msg, where=""))

    def _give_up(self) -> None:
        in_headers = self._reading is _Reading.HEADERS
        if (in_headers and not self._received) or (not in_headers and self.cycle.response_started):
            self.transport.abort()
            return
        what = "headers" if in_headers else "body"
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, InvalidRequest(f"the request's {what} did not come in time", where=""))

    def _refuse_headers(self) -> None:
        most = self._limits.header_bytes
        wrong = InvalidRequest(f"the request's headers are larger than {most} bytes", where="headers")
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, wrong)

    def _refuse(self, status: HTTPStatus, refusal: TraceError) -> None:
        """No application has seen the request: the answer is written here, and the connection ends with it."""
        self._refused = True
        body = _encoded(refusal)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _header_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _over_limit(self, app: ASGIApp) -> ASGIApp:
        async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == HEALTH:
                await app(scope, receive, send)
                return
            most = self._limits.connections
            wrong = TooManyConnections(f"{most} connections are open here", hint="close some, or try again in a moment")
            await refuse(send, wrong, 503)

        return refusing


async def refuse(send: Send, refusal: Busy | TooManyConnections, status: int) -> None:
    """The answer in the shape of every other; the connection ends with it, so that it does not count further."""
    headers = [
        (b"content-type", b"application/json"),
        (b"retry-after", str(refusal.retry_after).encode()),
        (b"content-length", str(len(body := _encoded(refusal))).encode()),
        *([(b"connection", b"close")] if isinstance(refusal, TooManyConnections) else ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _encoded(refusal: TraceError) -> bytes:
    return msgspec.json.encode({"error": refusal.as_dict()})
