"""Reading a request's body: no more of it than is allowed, and only as what it must be."""

from __future__ import annotations

from typing import TypeVar

from starlette.requests import Request

from tracelake.wire.read_call import read_bytes
from tracelake.wire.task_messages import MAX_BODY_BYTES, Message, decode

B = TypeVar("B", bound=Message)


async def read(request: Request, kind: type[B], most: int = MAX_BODY_BYTES) -> B:
    return decode(await read_bytes(request, most), kind, most)
