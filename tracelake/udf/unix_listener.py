"""Plain HTTP on a unix socket that is mounted into a sandbox: who calls is untrusted, so all of it is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from tracelake.capability import CAPABILITY_HEADER
from tracelake.errors import InvalidRequest, NotFound, TraceError
from tracelake.runtime.listeners import STATUS_OF

log = structlog.get_logger()

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
KEEP_SECONDS: Final = 3600.0
EVERYBODY: Final = 0o666
"""Of the socket itself: the folder around it is ours alone, and what is mounted is for the sandbox's user."""


async def listen(path: Path, handle: Handle, *, connections: int, pace: Pace | None) -> Listener:
    return await Listener(handle, connections, pace).open(path)


class Listener:
    def __init__(self, handle: Handle, connections: int, pace: Pace | None) -> None:
        self._handle = handle
        self._connections = connections
        self._pace = pace
        self._open = 0
        self._http = web.Server(
            self._answer, handler_cancellation=True, access_log=None, keepalive_timeout=KEEP_SECONDS
        )
        self._server: asyncio.Server | None = None

    async def open(self, path: Path) -> Listener:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._protocol, str(path))
        path.chmod(EVERYBODY)  # noqa: ASYNC240 - one system call
        return self

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._http.shutdown(timeout=0)

    def _protocol(self) -> asyncio.BaseProtocol:
        """Counted when it is accepted, not when it is served: many may be accepted at once."""
        if self._open >= self._connections:
            return _HangUp()
        self._open += 1
        return _Counted(self._http(), self._gone)

    def _gone(self) -> None:
        self._open -= 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._pace is not None:
            await self._pace.wait()
        try:
            _refuse_two_tokens(request)
            return await self._handle(request)
        except TraceError as refusal:
            return refused(refusal)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("a sandbox's request failed", path=request.path[:200])
            return web.Response(status=500)


class _HangUp(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Counted(asyncio.Protocol):
    """Another protocol, of which we are told when it is over."""

    def __init__(self, inner: asyncio.Protocol, gone: Callable[[], None]) -> None:
        self._inner = inner
        self._gone = gone
        self.data_received = inner.data_received  # type: ignore[method-assign] # no step between on the busy path
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()
        self._inner.connection_lost(exc)


class Pace:
    """At most so many in a second, in the long run; a burst of one second's worth at once."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._next = 0.0

    async def wait(self) -> None:
        now = time.monotonic()
        self._next = max(self._next, now - 1) + 1 / self._per_second
        if self._next > now:
            await asyncio.sleep(self._next - now)


def _refuse_two_tokens(request: web.BaseRequest) -> None:
    if len(request.headers.getall(CAPABILITY_HEADER, ())) > 1:
        raise InvalidRequest("this header may be sent once", where=f"header {CAPABILITY_HEADER}")


def refused(refusal: TraceError) -> web.Response:
    status = next((status for kind, status in STATUS_OF if isinstance(refusal, kind)), 500)
    return answered({"error": refusal.as_dict()}, status)


def answered(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def no_such(request: web.BaseRequest) -> NotFound:
    return NotFound(f"there is no {request.method} {request.path[:200]} at this door", where=request.path[:200])
