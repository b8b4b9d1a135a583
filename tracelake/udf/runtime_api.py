"""The Lambda Runtime API for one sandbox or local run: invocations for the function, and its results.

The function is untrusted. It may make each call once, at its time, for the current invocation; any other call is
refused, and the sandbox is not used again.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiohttp import web

from tracelake.errors import InvalidRequest
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.read_body import read_bounded
from tracelake.udf.sandbox_listener import json_response, not_found

BASE: Final = "/2018-06-01/runtime"
ABOUT: Final = re.compile(rf"{BASE}/invocation/([0-9A-Za-z-]{{1,64}})/(response|error)")
ARN: Final = "arn:aws:lambda:us-east-1:000000000000:function:udf"
ERROR_BYTES: Final = 256 * 1024
MOST_CHARACTERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class FunctionError:
    """An error as Lambda's callers see it: the function's own, or why it was ended."""

    kind: str
    message: str

    def as_json(self) -> bytes:
        return msgspec.json.encode({"errorType": self.kind, "errorMessage": self.message})


Result = bytes | FunctionError
"""A result, which is JSON, or an error."""


@dataclass
class _Invocation:
    request_id: str
    payload: bytes
    deadline_ms: int
    ended: asyncio.Future[Result] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    taken: bool = False


class RuntimeApi:
    def __init__(self, result_bytes: int) -> None:
        self.waits = asyncio.Event()
        """Whether the function waits for its next invocation."""
        self.init_error: FunctionError | None = None
        self.misbehaved: str | None = None
        self._result_bytes = result_bytes
        self._current: _Invocation | None = None
        self._offered = asyncio.Event()

    async def invoke(self, request_id: str, payload: bytes, deadline_ms: int) -> Result:
        """Returns the result. A caller that stops waiting must end the sandbox: an invocation cannot be withdrawn."""
        current = self._current = _Invocation(request_id, payload, deadline_ms)
        self._offered.set()
        return await current.ended

    def fail(self, error: FunctionError) -> None:
        """Ends the current invocation with this error; a later response of the function is refused."""
        if self._current is not None and not self._current.ended.done():
            self._current.ended.set_result(error)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if (request.method, request.path) == ("GET", f"{BASE}/invocation/next"):
            return await self._next()
        if (request.method, request.path) == ("POST", f"{BASE}/init/error"):
            self.init_error = _error(await read_bounded(request.content.iter_any(), ERROR_BYTES))
            return _accepted()
        about = ABOUT.fullmatch(request.path) if request.method == "POST" else None
        if about is None:
            raise not_found(request)
        return await self._end(request, about[1], about[2])

    async def _next(self) -> web.Response:
        if self.waits.is_set():
            raise self._wrong("it requested a task twice at once")
        if self._current is not None and self._current.taken:
            if not self._current.ended.done():
                raise self._wrong("it requested the next task before it had answered")
            self._current = None
            self._offered.clear()
        self.waits.set()
        try:
            await self._offered.wait()
        finally:
            self.waits.clear()
        current = self._current
        if current is None:
            raise self._wrong("it requested a task that was withdrawn")
        current.taken = True
        crash_point("runner.invocation_sent")
        return web.Response(body=current.payload, content_type="application/json", headers=_headers(current))

    async def _end(self, request: web.BaseRequest, request_id: str, how: str) -> web.Response:
        current = self._current
        if current is None or current.request_id != request_id or current.ended.done():
            raise self._wrong("it answered for an invocation that is not current")
        ended: Result
        if how == "error":
            ended = _error(await read_bounded(request.content.iter_any(), ERROR_BYTES))
        else:
            ended = await self._result(request)
        if current.ended.done():
            raise self._wrong("it answered twice")
        current.ended.set_result(ended)
        crash_point("runner.answered")
        return _accepted()

    async def _result(self, request: web.BaseRequest) -> Result:
        try:
            result = await read_bounded(request.content.iter_any(), self._result_bytes)
        except InvalidRequest:
            self.misbehaved = "its result was too large"
            message = f"the result is larger than {self._result_bytes} bytes"
            return FunctionError("Function.ResponseSizeTooLarge", message)
        try:
            msgspec.json.decode(result or b"null", type=msgspec.Raw)
            msgspec.json.decode(result or b"null")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.misbehaved = "its result was not JSON"
            return FunctionError("Runtime.MalformedResponse", "the result is not JSON")
        return result or b"null"

    def _wrong(self, how: str) -> InvalidRequest:
        self.misbehaved = how
        self.fail(FunctionError("Runtime.Misbehaved", f"the function broke the rules of the Runtime API: {how}"))
        return InvalidRequest(how, where=BASE)


def _error(body: bytes) -> FunctionError:
    try:
        error: Any = msgspec.json.decode(body)
        return FunctionError(str(error["errorType"])[:200], str(error["errorMessage"])[:MOST_CHARACTERS])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return FunctionError("Runtime.UnknownReason", body[:MOST_CHARACTERS].decode(errors="replace"))


def _headers(current: _Invocation) -> dict[str, str]:
    return {
        "Lambda-Runtime-Aws-Request-Id": current.request_id,
        "Lambda-Runtime-Deadline-Ms": str(current.deadline_ms),
        "Lambda-Runtime-Invoked-Function-Arn": ARN,
        "Lambda-Runtime-Trace-Id": f"Root=1-{current.request_id.replace('-', '')[:32]}",
    }


def _accepted() -> web.Response:
    return json_response({"status": "OK"}, 202)
