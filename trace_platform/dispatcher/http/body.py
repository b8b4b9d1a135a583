"""Reading a request's body: no more of it than is allowed, and only as what it must be."""

from __future__ import annotations

from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from trace_platform.contracts import MAX_BODY_BYTES, Message, decode
from trace_platform.errors import InvalidRequest

B = TypeVar("B", bound=Message)


async def read(request: Request, kind: type[B]) -> B:
    return decode(await read_bytes(request), kind)


async def read_bytes(request: Request, most: int = MAX_BODY_BYTES) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise InvalidRequest(f"the body is larger than {most} bytes", where="")
    except ClientDisconnect:  # nobody hears this: it keeps a stack trace out of the log
        raise InvalidRequest("the caller hung up before the body was whole", where="") from None
    return bytes(body)
