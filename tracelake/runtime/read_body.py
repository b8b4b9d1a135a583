"""Reads a body from outside, up to a limit: the only place where Trace reads one."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from starlette.requests import ClientDisconnect

from tracelake.errors import InvalidRequest


async def read_bounded(chunks: AsyncIterable[bytes], most: int, where: str = "") -> bytes:
    """The whole body. Raises InvalidRequest if it is larger than `most` bytes, or if it ends early."""
    return b"".join([chunk async for chunk in bounded(chunks, most, where)])


async def bounded(chunks: AsyncIterable[bytes], most: int, where: str = "") -> AsyncIterator[bytes]:
    """The body as it arrives, for who passes it on. `chunks`: of Starlette, aiohttp or httpx."""
    size = 0
    try:
        async for chunk in chunks:
            size += len(chunk)
            if size > most:
                raise InvalidRequest(f"the body is larger than {most} bytes", where=where)
            yield chunk
    except ClientDisconnect:  # no one receives this answer: it keeps a stack trace out of the log
        raise InvalidRequest("the caller hung up before the body was whole", where=where) from None
