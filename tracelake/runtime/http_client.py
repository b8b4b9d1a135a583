"""The HTTP client of every process: as httpx's own, but a canceled call never leaves its connection open.

httpcore closes a connection whose TLS handshake fails, but not one whose handshake is canceled: neither the call nor
the pool knows of it then, and it stays open until the garbage collector finds it.
"""

from __future__ import annotations

from typing import Any

import anyio
import httpcore
import httpx


class AsyncClient(httpx.AsyncClient):
    """Takes what httpx.AsyncClient takes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for transport in (self._transport, *self._mounts.values()):
            if isinstance(transport, httpx.AsyncHTTPTransport):
                close_when_canceled(transport)


def close_when_canceled(transport: httpx.AsyncHTTPTransport) -> httpx.AsyncHTTPTransport:
    """Gives the transport back: a connection that it opens is closed when the call that opens it is canceled."""
    pool = transport._pool  # noqa: SLF001 - httpx has no parameter for httpcore's public `network_backend`
    pool._network_backend = _Backend(pool._network_backend)  # noqa: SLF001 - as above
    return transport


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, backend: httpcore.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._backend.connect_tcp(*args, **options))

    async def connect_unix_socket(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._backend.connect_unix_socket(*args, **options))

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    """A connection without TLS, or before it."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    async def start_tls(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(*args, **options)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()
            raise

    async def read(self, *args: Any, **options: Any) -> bytes:
        return await self._stream.read(*args, **options)

    async def write(self, *args: Any, **options: Any) -> None:
        await self._stream.write(*args, **options)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
