"""What one caller may cost a listener: half requests, large headers and too many connections end in a clear answer."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.support.tls import ready, tls_in, trusting
from tests.support.waiting import SECONDS, until
from tracelake.runtime.listeners import Listener, listener_app, open_listeners
from tracelake.runtime.read_body import read_bounded
from tracelake.settings import HttpSettings
from tracelake.wire.message import MAX_BODY_BYTES

pytestmark = pytest.mark.anyio
SHORT = HttpSettings(header_seconds=0.5, stall_seconds=0.5, header_bytes=8192)
GET = b"GET /wait HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}  # as our processes run


@dataclass
class Line:
    """A connection, and what came back on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *pieces: bytes) -> None:
        with suppress(ConnectionError):  # it was closed meanwhile: the test reads why
            for piece in pieces:
                self.writer.write(piece)
                await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, json.loads(body)

    async def refused(self) -> tuple[int, str]:
        status, _, body = await self.answer()
        return status, body["error"]["message"]

    async def rest(self) -> bytes:
        """Until the listener closes."""
        with suppress(ConnectionError):
            return await self.reader.read()
        return b""


class SlowListener:
    def __init__(self, port: int, context: ssl.SSLContext, stack: AsyncExitStack) -> None:
        self.port = port
        self.released = asyncio.Event()
        self.gone = asyncio.Event()
        """The client has gone."""
        self.begun = 0
        self._context = context
        self._stack = stack

    async def line(self) -> Line:
        found = Line(*await asyncio.open_connection("127.0.0.1", self.port, ssl=self._context))
        self._stack.callback(found.writer.transport.abort)
        return found

    async def waiting(self, count: int) -> list[Line]:
        """So many requests that are in progress."""
        lines = [await self.line() for _ in range(count)]
        before = self.begun
        for line in lines:
            await line.send(GET + b"\r\n")
        await until(lambda: self.begun >= before + count, "the requests are in progress")
        return lines


async def _endless(gone: asyncio.Event) -> AsyncIterator[bytes]:
    try:
        while True:
            yield b"0" * 100_000
            await asyncio.sleep(0)
    finally:
        gone.set()


@asynccontextmanager
async def listening(folder: Path, limits: HttpSettings) -> AsyncIterator[SlowListener]:
    tls = tls_in(folder)
    async with asyncio.timeout(SECONDS), AsyncExitStack() as stack:
        made = SlowListener(0, trusting(tls.ca), stack)

        async def wait(_: Request) -> Response:
            made.begun += 1
            await made.released.wait()
            return Response(b"{}", media_type="application/json")

        async def take(request: Request) -> Response:
            made.begun += 1
            body = await read_bounded(request.stream(), MAX_BODY_BYTES)
            return Response(str(len(body)), media_type="application/json")

        async def large(_: Request) -> Response:
            return StreamingResponse(_endless(made.gone))

        routes = [Route("/wait", wait), Route("/take", take, methods=["POST"]), Route("/large", large)]
        listener = Listener("d", "127.0.0.1", 0, listener_app(routes, ready))
        address = (await stack.enter_async_context(open_listeners([listener], tls, limits=limits)))["d"]
        made.port = int(address.rpartition(":")[2])
        stack.callback(made.released.set)
        yield made


async def test_headers_that_do_not_end_are_refused_before_they_fill_memory(tmp_path: Path) -> None:
    async with listening(tmp_path, HttpSettings(header_bytes=8192)) as listener:
        line = await listener.line()
        sending = asyncio.create_task(line.send(GET, *[b"x-%d: %s\r\n" % (n, b"y" * 4000) for n in range(100)]))
        assert await line.refused() == (431, "the request's headers are larger than 8192 bytes")
        await sending
        assert listener.begun == 0


async def test_one_large_header_is_refused_though_it_is_whole(tmp_path: Path) -> None:
    async with listening(tmp_path, HttpSettings(header_bytes=8192)) as listener:
        line = await listener.line()
        await line.send(GET + b"x: " + b"y" * 9000 + b"\r\n\r\n")
        assert (await line.refused())[0] == 431
        body = await listener.line()
        await body.send(b"POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n" + b"y" * 50_000)
        assert (await body.answer())[::2] == (200, 50_000), "a large body is no large header"


@pytest.mark.parametrize(
    ("sent", "what"),
    [(GET, "headers"), (b"POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nfour", "body")],
)
async def test_a_half_sent_request_is_answered_408_and_closed(tmp_path: Path, sent: bytes, what: str) -> None:
    async with listening(tmp_path, SHORT) as listener:
        line = await listener.line()
        await line.send(sent)
        assert await line.refused() == (408, f"the request's {what} did not come in time")
        assert await line.rest() == b""


async def test_a_caller_that_sends_a_byte_now_and_then_is_closed_too(tmp_path: Path) -> None:
    async with listening(tmp_path, SHORT) as listener:
        line = await listener.line()
        await line.send(GET)

        async def trickle() -> None:
            while True:
                await line.send(b"x: y\r\n")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        assert (await line.refused())[0] == 408
        trickling.cancel()


@pytest.mark.parametrize("says_hello", [False, True], ids=["without TLS", "without a request"])
async def test_a_connection_that_says_nothing_is_closed(tmp_path: Path, says_hello: bool) -> None:
    async with listening(tmp_path, SHORT) as listener:
        if says_hello:
            line = await listener.line()
        else:
            line = Line(*await asyncio.open_connection("127.0.0.1", listener.port))
        assert await line.rest() == b""
        line.writer.transport.abort()


async def test_a_caller_that_does_not_read_its_answer_is_closed(tmp_path: Path) -> None:
    async with listening(tmp_path, SHORT) as listener:
        line = await listener.line()
        line.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await line.send(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        await listener.gone.wait()


async def test_a_slow_application_is_no_slow_caller(tmp_path: Path) -> None:
    async with listening(tmp_path, SHORT) as listener:
        (line,) = await listener.waiting(1)
        other = await listener.line()
        await other.send(GET)
        assert (await other.refused())[0] == 408, "as long as it takes to give up a slow caller"
        listener.released.set()
        assert (await line.answer())[0] == 200
        await line.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await line.answer())[0] == 200, "the connection is kept"


async def test_one_request_too_many_is_429_and_health_is_answered(tmp_path: Path) -> None:
    async with listening(tmp_path, HttpSettings(requests=2)) as listener:
        lines = await listener.waiting(2)
        more = await listener.line()
        await more.send(GET + b"\r\n")
        status, headers, body = await more.answer()
        assert (status, headers["retry-after"], body["error"]["code"]) == (429, "1", "busy")
        assert body["error"]["retryable"] is True
        await more.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await more.answer())[0] == 200
        listener.released.set()
        assert [(await line.answer())[0] for line in lines] == [200, 200]
        await more.send(GET + b"\r\n")
        assert (await more.answer())[0] == 200


async def test_one_connection_too_many_is_503_and_health_is_answered(tmp_path: Path) -> None:
    async with listening(tmp_path, HttpSettings(connections=2)) as listener:
        lines = [await listener.line() for _ in range(2)]
        for line in lines:
            await line.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await line.answer())[0] == 200
        more = await listener.line()
        await more.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await more.answer())[0] == 200
        await more.send(GET + b"\r\n")
        status, headers, body = await more.answer()
        assert (status, headers["retry-after"], body["error"]["code"]) == (503, "1", "too_many_connections")
        assert await more.rest() == b"", "and it is closed"


async def test_a_request_that_is_not_http_is_refused_in_the_usual_shape(tmp_path: Path) -> None:
    async with listening(tmp_path, SHORT) as listener:
        line = await listener.line()
        await line.send(b"\x00\x01\x02 nonsense\r\n\r\n")
        status, _, body = await line.answer()
        assert (status, body["error"]["code"]) == (400, "invalid_request")
