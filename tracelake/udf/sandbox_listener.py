"""HTTP for untrusted functions: on a unix socket that is mounted into a sandbox, or on loopback for a local run.

Connections, request rates and body sizes are bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from tracelake.errors import InvalidRequest, NotFound, TraceError
from tracelake.runtime.listeners import STATUS_OF
from tracelake.wire.message import CAPABILITY_HEADER

log = structlog.get_logger()

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
KEEP_SECONDS: Final = 3600.0
SOCKET_MODE: Final = 0o666
"""The sandbox's user must reach the socket; the folder around it is closed to everybody else."""


class SandboxListener:
    def __init__(self, handle: Handle, connections: int, rate_limit: RateLimit | None) -> None:
        self._handle = handle
        self._connections = connections
        self._rate_limit = rate_limit
        self._open = 0
        self._http = web.Server(
            self._answer, handler_cancellation=True, access_log=None, keepalive_timeout=KEEP_SECONDS
        )
        self._server: asyncio.Server | None = None

    async def open_unix(self, path: Path) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(self._protocol, str(path))
        path.chmod(SOCKET_MODE)  # noqa: ASYNC240 - one system call

    async def open_loopback(self) -> int:
        """Returns its port."""
        self._server = await asyncio.get_running_loop().create_server(self._protocol, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._http.shutdown(timeout=0.001)  # 0 would wait for ever for a client that stays connected

    def _protocol(self) -> asyncio.BaseProtocol:
        """Counts connections when they are accepted, not when they are served: many may be accepted at once."""
        if self._open >= self._connections:
            return _RefusedConnection()
        self._open += 1
        return _CountedConnection(self._http(), self._connection_closed)

    def _connection_closed(self) -> None:
        self._open -= 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._rate_limit is not None:
            await self._rate_limit.wait()
        try:
            _refuse_two_tokens(request)
            return await self._handle(request)
        except TraceError as refusal:
            return error_response(refusal)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("a sandbox's request failed", path=request.path[:200])
            return web.Response(status=500)


class _RefusedConnection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _CountedConnection(asyncio.Protocol):
    """Delegates to another protocol and reports when the connection closes."""

    def __init__(self, inner: asyncio.Protocol, closed: Callable[[], None]) -> None:
        self._inner = inner
        self._closed = closed
        self.data_received = inner.data_received  # type: ignore[method-assign] # the busy path
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed()
        self._inner.connection_lost(exc)


class RateLimit:
    """Allows so many requests per second, and bursts of one second's worth."""

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


def error_response(refusal: TraceError) -> web.Response:
    status = next((status for kind, status in STATUS_OF if isinstance(refusal, kind)), 500)
    return json_response({"error": refusal.as_dict()}, status)


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def not_found(request: web.BaseRequest) -> NotFound:
    return NotFound(f"there is no {request.method} {request.path[:200]} on this listener", where=request.path[:200])
