"""Forwards requests of a sandbox to a task API over TLS. Nothing else can be reached.

It forwards requests, not bytes: only the paths of tasks exist, sandboxes share warm connections (a handshake costs more
than most calls), and requests of two sandboxes cannot be mixed up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import aiohttp
from aiohttp import web
from yarl import URL

from tracelake.errors import Forbidden, ServiceUnavailable
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.read_body import read_bounded
from tracelake.udf.sandbox_listener import not_found
from tracelake.wire.message import CAPABILITY_HEADER, MAX_BODY_BYTES

PATH: Final = re.compile(r"/v1/task/[a-z][a-z-]*")
"""The paths of the task API; not `/internal/*`, health and metrics."""
FORWARDED: Final = (CAPABILITY_HEADER, "Content-Type", "Accept")
RETURNED: Final = ("Content-Type", "Retry-After", "X-Request-Id")
CHUNK: Final = 65536


class TaskApiProxy:
    """`base`: the URL of the task API; `is_open`: whether there is a current invocation."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        base: str,
        is_open: Callable[[], bool],
    ) -> None:
        self._http = http
        self._base = base
        self._is_open = is_open

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "POST" or not PATH.fullmatch(request.raw_path):
            raise not_found(request)
        if not self._is_open():
            raise Forbidden("there is no current task", where=request.path)
        body = await read_bounded(request.content.iter_any(), MAX_BODY_BYTES)
        headers = {name: value for name in FORWARDED if (value := request.headers.get(name)) is not None}
        crash_point("runner.before_forward")
        try:
            async with self._http.post(
                URL(self._base + request.raw_path, encoded=True), data=body, headers=headers, allow_redirects=False
            ) as answer:
                crash_point("runner.forwarded")
                return await _returned(request, answer)
        except aiohttp.ClientError as error:
            raise ServiceUnavailable(f"the task API does not answer: {type(error).__name__}") from None


async def _returned(request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {name: value for name in RETURNED if (value := answer.headers.get(name)) is not None}
    if answer.content_length is not None and answer.content_length <= CHUNK:
        return web.Response(status=answer.status, body=await answer.read(), headers=headers)
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    async for chunk in answer.content.iter_chunked(CHUNK):
        await response.write(chunk)
    await response.write_eof()
    return response
