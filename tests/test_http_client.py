"""A call that is canceled closes its connection, wherever it stands: the server sees it end, and no garbage does it."""

from __future__ import annotations

import ast
import asyncio
import gc
import ssl
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import ROOT
from tests.support.tls import trusting
from tests.support.waiting import SECONDS
from tracelake.lite.certificates import ensure_certificates
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.tls import TlsFiles, server_context

pytestmark = pytest.mark.anyio

PRODUCT = ROOT / "tracelake"
SAID = {
    "handshake": None,
    "answer": b"",
    "headers": b"HTTP/1.1 200 OK\r\ncontent-le",
    "body": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhal",
}
"""What the server says before it falls silent; None: not even its part of the TLS handshake."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return ensure_certificates(tmp_path_factory.mktemp("tls"), datetime.now(UTC))


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


class Silent:
    """Says something, falls silent, and waits until the caller hangs up."""

    def __init__(self, said: bytes | None) -> None:
        self._said = said
        self._writer: asyncio.StreamWriter | None = None
        self.reached = asyncio.Event()
        self.hung_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        await reader.read(1)
        if self._said:
            writer.write(self._said)
            await writer.drain()
        self.reached.set()
        try:
            while await reader.read(1_000):
                pass
        except OSError:
            pass
        self.hung_up.set()
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()


@asynccontextmanager
async def silent(stage: str, files: TlsFiles) -> AsyncIterator[tuple[Silent, str]]:
    server = Silent(SAID[stage])
    context = None if SAID[stage] is None else server_context(files)
    async with listening(server.serve, context) as url:
        yield server, url
        server.close()


@asynccontextmanager
async def listening(serve: Any, context: ssl.SSLContext | None) -> AsyncIterator[str]:
    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()  # and not waited for: uvloop would wait for a connection that was left open


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Nothing is closed by chance; and at the end nothing is found that was not closed.

    Only among what the block made: to look through all that was imported would take half a second.
    """
    gc.disable()
    gc.freeze()
    try:
        yield
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            gc.collect()
        assert [str(item.message) for item in found if issubclass(item.category, ResourceWarning)] == []
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.parametrize("stage", SAID)
async def test_a_call_that_is_canceled_while_its_server_is_silent_hangs_up(stage: str, files: TlsFiles) -> None:
    verify = trusting(files.ca)
    with without_garbage_collection():
        async with silent(stage, files) as (server, url), AsyncClient(base_url=url, verify=verify) as http:
            call = asyncio.create_task(http.get("/"))
            async with asyncio.timeout(SECONDS):
                await server.reached.wait()
            call.cancel()
            await asyncio.wait({call})
            async with asyncio.timeout(SECONDS):
                await server.hung_up.wait()  # while the client is open: it is the call that closes its connection
            assert call.cancelled()
        del call, http


async def test_a_call_that_is_canceled_at_any_step_of_its_loop_leaves_no_connection(files: TlsFiles) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        writer.transport.abort()

    verify = trusting(files.ca)
    async with listening(answer, server_context(files)) as url:
        with without_garbage_collection():
            steps = 0
            while not await canceled_after(steps, AsyncClient(base_url=url, verify=verify)):
                steps += 1
    assert steps > 10  # it was canceled in between


async def canceled_after(steps: int, client: httpx.AsyncClient) -> bool:
    """Whether the call was answered before."""
    async with client:
        call = asyncio.create_task(client.get("/"))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        return not call.cancelled()


def test_every_async_client_of_the_product_is_this_one() -> None:
    def calls(path: Path) -> bool:
        tree = ast.walk(ast.parse(path.read_text()))
        return any(isinstance(node, ast.Call) and ast.unparse(node.func) == "httpx.AsyncClient" for node in tree)

    assert [str(path) for path in PRODUCT.rglob("*.py") if calls(path)] == []
