"""The TLS listeners of a process, all in one event loop, and the table from errors to HTTP responses."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from socket import AF_INET, IPPROTO_TCP, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket
from typing import Any, TypeVar

import msgspec
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tracelake.errors import (
    BadInput,
    BodyTooLarge,
    Busy,
    Conflict,
    DatabaseUnavailable,
    DiskFull,
    Forbidden,
    HungUp,
    LeaseLost,
    LimitReached,
    NotFound,
    QueryFailed,
    QueryTimeout,
    SettingsError,
    SetupError,
    SnapshotTooOld,
    TraceError,
    Unauthenticated,
    Unavailable,
)
from tracelake.runtime.disk import NO_SPACE
from tracelake.runtime.http_limits import Admission, LimitedProtocol
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.request_middleware import RequestMiddleware
from tracelake.runtime.tls import TlsFiles, reload_if_changed, server_context
from tracelake.settings import HttpSettings, TlsSettings

log = structlog.get_logger()
T = TypeVar("T")

STATUS_OF: Sequence[tuple[type[TraceError], int]] = (
    (BodyTooLarge, 413),
    (BadInput, 400),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (Conflict, 409),
    (LeaseLost, 409),
    (SnapshotTooOld, 409),
    (LimitReached, 422),
    (QueryFailed, 422),
    (Busy, 429),
    (QueryTimeout, 504),
    (Unavailable, 503),
)

RENEWAL_LOOK_SECONDS = 60.0
TLS_GOODBYE_SECONDS = 5.0
"""How long a caller may take to close TLS before its connection is cut."""
HANG_UP_SECONDS = 0.1
"""How long a closing listener waits for callers that only keep a connection."""
HTTP_FAULT = 500


@dataclass(frozen=True)
class Listener:
    name: str
    host: str
    port: int
    app: ASGIApp


@asynccontextmanager
async def open_listeners(
    listeners: Sequence[Listener],
    tls: TlsSettings,
    look_every: float = RENEWAL_LOOK_SECONDS,
    *,
    metrics: Metrics | None = None,
    limits: HttpSettings = HttpSettings(),  # noqa: B008 - frozen
) -> AsyncIterator[dict[str, str]]:
    """Listens until the block ends; yields the address of each listener. All are bound before any is served."""
    metrics = metrics or Metrics()
    files = _files(tls)
    context = _context(files)
    sockets = _bind_all(listeners)
    servers = [
        _server(RequestMiddleware(Admission(listener.app, limits), listener.name, metrics), context, limits)
        for listener in listeners
    ]
    serving = [asyncio.create_task(s.serve(sockets=[sock])) for s, sock in zip(servers, sockets, strict=True)]
    renewal = asyncio.create_task(_follow_renewals(context, files, look_every))
    try:
        await _started(servers, serving)
        yield {listener.name: _address(sock) for listener, sock in zip(listeners, sockets, strict=True)}
    finally:
        renewal.cancel()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*serving, return_exceptions=True)


def json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def refusal_response(refusal: TraceError) -> Response:
    status = next((status for kind, status in STATUS_OF if isinstance(refusal, kind)), 500)
    answer = json_response({"error": refusal.as_dict()}, status)
    if isinstance(refusal, Unavailable):
        answer.headers["retry-after"] = str(refusal.retry_after)
    return answer


def listener_app(
    routes: Sequence[Route],
    ready: Callable[[], Awaitable[None]],
    outages: Sequence[type[Exception]] = (),
    named: Callable[[Exception], TraceError] = lambda away: DatabaseUnavailable(type(away).__name__),
) -> Starlette:
    """An API with health routes and error handlers.

    `outages`: what is raised when a service that it needs does not answer; `named` makes the error for callers.
    """

    async def on_outage(request: Request, away: Exception) -> Response:
        return await on_refusal(request, named(away))

    handlers = HANDLERS | dict.fromkeys(outages, on_outage)
    return ListenerApp(routes=[*health_routes(ready), *routes], exception_handlers=handlers)


class ListenerApp(Starlette):
    """An API whose plain paths are looked up in one step: routing and wrapping cost as much as the answer itself.

    Starlette routes everything else, a wrong method included, and everything once there is a middleware.
    """

    def __init__(self, *, routes: Sequence[Route], exception_handlers: dict[Any, Any]) -> None:
        super().__init__(routes=list(routes), exception_handlers=exception_handlers)
        self._plain = {
            (method, route.path): route.endpoint
            for route in routes
            if "{" not in route.path
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._plain.get((scope.get("method", ""), scope.get("path", "")))
        if handler is None or self.user_middleware:
            await super().__call__(scope, receive, send)
        else:
            response = await self._answer(handler, Request(scope, receive))
            await response(scope, receive, send)

    async def _answer(self, handler: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        handlers: dict[Any, Any] = self.exception_handlers
        try:
            return await handler(request)
        except tuple(handlers) as wrong:
            refuse = next(handlers[kind] for kind in type(wrong).__mro__ if kind in handlers)
            answer: Response = await refuse(request, wrong)
            return answer


def health_routes(ready: Callable[[], Awaitable[None]]) -> list[Route]:
    """`/healthz`: the process runs. `/readyz`: the services that it needs answer too (`ready` raises if not)."""

    async def healthz(request: Request) -> Response:
        del request
        return json_response({"status": "ok"})

    async def readyz(request: Request) -> Response:
        del request
        await ready()
        return json_response({"status": "ready"})

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def bearer(request: Request) -> str | None:
    """The token in `Authorization: Bearer`, if there is one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is canceled if the caller disconnects before. The body must have been read."""
    asked = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise HungUp("the caller hung up before the answer", where="")
        return asked.result()
    finally:
        gone.cancel()
        asked.cancel()
        await asyncio.wait({asked})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def on_refusal(request: Request, refusal: Exception) -> Response:
    """A refusal is an answer, never a stack trace."""
    if not isinstance(refusal, TraceError):
        raise refusal
    answer = refusal_response(refusal)
    _log_refusal(request, refusal, answer.status_code)
    return answer


async def on_no_route(request: Request, wrong: Exception) -> Response:
    """No such path or method, in the shape of every other refusal."""
    status = wrong.status_code if isinstance(wrong, HTTPException) else 500
    refusal = NotFound(f"there is no {request.method} {request.url.path} in this API", where=request.url.path)
    return json_response({"error": refusal.as_dict()}, status)


async def on_disconnect(request: Request, gone: Exception) -> Response:
    """No one receives this answer: it keeps a stack trace out of the log."""
    del gone
    return await on_refusal(request, HungUp("the caller hung up before the body was whole", where=""))


async def on_full_disk(request: Request, wrong: Exception) -> Response:
    """A full disk of this process is named; any other error of the system is a fault of ours."""
    if not isinstance(wrong, OSError) or wrong.errno not in NO_SPACE:
        raise wrong
    return await on_refusal(request, DiskFull.of("this process", wrong.filename))


HANDLERS: dict[Any, Any] = {TraceError: on_refusal, HTTPException: on_no_route}
HANDLERS |= {ClientDisconnect: on_disconnect, OSError: on_full_disk}
"""The exception handlers of every API."""


def _log_refusal(request: Request, refusal: TraceError, status: int) -> None:
    """Logs a refusal for the operator. Strangers, and callers that have left, only at the level debug."""
    say = log.debug if isinstance(refusal, Unauthenticated | NotFound | HungUp) else log.info
    if status >= HTTP_FAULT:
        say = log.warning
    # Neither headers nor body: those hold tokens.
    fields = {"code": refusal.code, "because": refusal.message, "where": refusal.where}
    say("refused", method=request.method, path=request.url.path, status=status, **fields)


def _files(tls: TlsSettings) -> TlsFiles:
    if tls.cert is None or tls.key is None:
        missing = "tls.cert" if tls.cert is None else "tls.key"
        raise SettingsError(f"a listener needs a certificate: {missing} is not set", where=missing)
    return TlsFiles(tls.ca or tls.cert, tls.cert, tls.key)


def _context(files: TlsFiles) -> ssl.SSLContext:
    try:
        return server_context(files)
    except OSError as wrong:  # SSLError is one too
        raise SetupError(f"the certificate cannot be used: {wrong}", where=str(files.cert)) from None


async def _follow_renewals(context: ssl.SSLContext, files: TlsFiles, every: float) -> None:
    """New connections get a renewed certificate; open ones stay."""
    seen = reload_if_changed(context, files, None)
    while True:
        await asyncio.sleep(every)
        seen = reload_if_changed(context, files, seen)


def _bind_all(listeners: Sequence[Listener]) -> list[socket]:
    with contextlib.ExitStack() as taken:
        sockets = [taken.enter_context(_bind(listener)) for listener in listeners]
        taken.pop_all()  # all are there: they are kept
        return sockets


def _bind(listener: Listener) -> socket:
    # Named as TCP: only then asyncio sends an answer's body without waiting until its head was acknowledged (40 ms).
    bound = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP)
    bound.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    try:
        bound.bind((listener.host, listener.port))
        bound.listen()  # two may be bound to one port as long as neither listens
    except OSError as wrong:
        bound.close()
        raise SetupError(
            f"the {listener.name} listener cannot listen on {listener.host}:{listener.port}: {wrong.strerror}",
            where=f"{listener.host}:{listener.port}",
            hint="end the process that holds the port, or choose another (`trace up --port-base`)",
        ) from None
    return bound


class _Server(uvicorn.Server):
    """Signals belong to the process, not to one of its listeners."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def __init__(self, config: uvicorn.Config, limits: HttpSettings) -> None:
        super().__init__(config)
        self._limits = limits

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """As uvicorn does it for sockets that are given, with limits on the TLS handshake, which it leaves at 60 s."""
        self.servers = [
            await asyncio.get_running_loop().create_server(
                self._connection,
                sock=item,
                ssl=self.config.ssl,
                backlog=self.config.backlog,
                ssl_handshake_timeout=self._limits.header_seconds,
                ssl_shutdown_timeout=TLS_GOODBYE_SECONDS,
            )
            for item in sockets or ()
        ]
        self.started = True

    def _connection(self) -> LimitedProtocol:
        return LimitedProtocol(
            limits=self._limits, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        hanging_up = asyncio.create_task(self._hang_up())
        try:
            await super().shutdown(sockets)
        finally:
            hanging_up.cancel()

    async def _hang_up(self) -> None:
        """TLS is closed both ways, and a caller that keeps a connection for its next request may not answer now."""
        while True:
            await asyncio.sleep(HANG_UP_SECONDS)
            for connection in list(self.server_state.connections):
                if _is_idle(connection):
                    connection.transport.abort()


def _server(app: ASGIApp, context: ssl.SSLContext, limits: HttpSettings) -> _Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        lifespan="off",
        http="httptools",
        ws="none",
        timeout_graceful_shutdown=5,
        timeout_keep_alive=limits.idle_seconds,
    )
    config.load()
    config.ssl = context
    return _Server(config, limits)


def _is_idle(connection: Any) -> bool:
    """All is answered, and the answer is on its way."""
    answered = connection.cycle is None or connection.cycle.response_complete
    return bool(answered and not connection.transport.get_write_buffer_size())


async def _started(servers: Sequence[_Server], serving: Sequence[asyncio.Task[None]]) -> None:
    while not all(server.started for server in servers):
        for task in serving:
            if task.done():
                task.result()
        await asyncio.sleep(0.005)


def _address(listener: socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"https://{host}:{port}"
