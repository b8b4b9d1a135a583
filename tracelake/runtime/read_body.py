"""Reads a body from outside, up to a limit: the only place where Trace reads one.

Executors of Spark import it to read from nodes, so it stays free of web frameworks.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from tracelake.errors import InvalidRequest


async def read_bounded(chunks: AsyncIterable[bytes], most: int, where: str = "") -> bytes:
    """The whole body. Raises InvalidRequest if it is larger than `most` bytes."""
    return b"".join([chunk async for chunk in bounded(chunks, most, where)])


async def bounded(chunks: AsyncIterable[bytes], most: int, where: str = "") -> AsyncIterator[bytes]:
    """The body as it arrives, for who passes it on. `chunks`: of Starlette, aiohttp or httpx."""
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > most:
            raise InvalidRequest(f"the body is larger than {most} bytes", where=where)
        yield chunk
