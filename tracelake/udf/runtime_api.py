"""The Lambda Runtime API, for one sandbox: what its function is handed, and what it hands back.

The other side is untrusted. It may say each thing once, at its time, about the invocation in hand; whatever else it
says is refused, and marks the sandbox as not to be used again.
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
from tracelake.udf.unix_listener import answered, no_such

BASE: Final = "/2018-06-01/runtime"
ABOUT: Final = re.compile(rf"{BASE}/invocation/([0-9A-Za-z-]{{1,64}})/(response|error)")
ARN: Final = "arn:aws:lambda:us-east-1:000000000000:function:udf"
ERROR_BYTES: Final = 256 * 1024
MOST_WORDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class FunctionError:
    """As Lambda's callers see it: the function's own error, or why it was ended."""

    kind: str
    message: str

    def as_json(self) -> bytes:
        return msgspec.json.encode({"errorType": self.kind, "errorMessage": self.message})


Ended = bytes | FunctionError
"""A result, which is JSON, or an error."""


@dataclass
class _Invocation:
    request_id: str
    payload: bytes
    deadline_ms: int
    ended: asyncio.Future[Ended] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    taken: bool = False


class RuntimeApi:
    def __init__(self, result_bytes: int) -> None:
        self.waits = asyncio.Event()
        """Whether the function asks for its next invocation."""
        self.init_error: FunctionError | None = None
        self.misbehaved: str | None = None
        self._result_bytes = result_bytes
        self._in_hand: _Invocation | None = None
        self._offered = asyncio.Event()

    async def invoke(self, request_id: str, payload: bytes, deadline_ms: int) -> Ended:
        """How the function ended it. Whoever waits no longer must end the sandbox: it cannot be called back."""
        in_hand = self._in_hand = _Invocation(request_id, payload, deadline_ms)
        self._offered.set()
        return await in_hand.ended

    def fail(self, error: FunctionError) -> None:
        """The one in hand ends so, whatever the function says later."""
        if self._in_hand is not None and not self._in_hand.ended.done():
            self._in_hand.ended.set_result(error)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if (request.method, request.path) == ("GET", f"{BASE}/invocation/next"):
            return await self._next()
        if (request.method, request.path) == ("POST", f"{BASE}/init/error"):
            self.init_error = _error(await read_bounded(request.content.iter_any(), ERROR_BYTES))
            return _accepted()
        about = ABOUT.fullmatch(request.path) if request.method == "POST" else None
        if about is None:
            raise no_such(request)
        return await self._end(request, about[1], about[2])

    async def _next(self) -> web.Response:
        if self.waits.is_set():
            raise self._wrong("it asked for a task twice at once")
        if self._in_hand is not None and self._in_hand.taken:
            if not self._in_hand.ended.done():
                raise self._wrong("it asked for the next task without having answered")
            self._in_hand = None
            self._offered.clear()
        self.waits.set()
        try:
            await self._offered.wait()
        finally:
            self.waits.clear()
        in_hand = self._in_hand
        if in_hand is None:
            raise self._wrong("it asked for a task that was taken back")
        in_hand.taken = True
        crash_point("runner.handed_out")
        return web.Response(body=in_hand.payload, content_type="application/json", headers=_headers(in_hand))

    async def _end(self, request: web.BaseRequest, request_id: str, how: str) -> web.Response:
        in_hand = self._in_hand
        if in_hand is None or in_hand.request_id != request_id or in_hand.ended.done():
            raise self._wrong("it answered for an invocation that is not in hand")
        ended: Ended
        if how == "error":
            ended = _error(await read_bounded(request.content.iter_any(), ERROR_BYTES))
        else:
            ended = await self._result(request)
        if in_hand.ended.done():
            raise self._wrong("it answered twice")
        in_hand.ended.set_result(ended)
        crash_point("runner.answered")
        return _accepted()

    async def _result(self, request: web.BaseRequest) -> Ended:
        try:
            result = await read_bounded(request.content.iter_any(), self._result_bytes)
        except InvalidRequest:
            self.misbehaved = "its result was too large"
            told = f"the result is larger than {self._result_bytes} bytes"
            return FunctionError("Function.ResponseSizeTooLarge", told)
        try:
            msgspec.json.decode(result or b"null", type=msgspec.Raw)
            msgspec.json.decode(result or b"null")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.misbehaved = "its result was no JSON"
            return FunctionError("Runtime.MalformedResponse", "the result is not JSON")
        return result or b"null"

    def _wrong(self, how: str) -> InvalidRequest:
        self.misbehaved = how
        self.fail(FunctionError("Runtime.Misbehaved", f"the function broke the rules of the Runtime API: {how}"))
        return InvalidRequest(how, where=BASE)


def _error(body: bytes) -> FunctionError:
    try:
        said: Any = msgspec.json.decode(body)
        return FunctionError(str(said["errorType"])[:200], str(said["errorMessage"])[:MOST_WORDS])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return FunctionError("Runtime.UnknownReason", body[:MOST_WORDS].decode(errors="replace"))


def _headers(in_hand: _Invocation) -> dict[str, str]:
    return {
        "Lambda-Runtime-Aws-Request-Id": in_hand.request_id,
        "Lambda-Runtime-Deadline-Ms": str(in_hand.deadline_ms),
        "Lambda-Runtime-Invoked-Function-Arn": ARN,
        "Lambda-Runtime-Trace-Id": f"Root=1-{in_hand.request_id.replace('-', '')[:32]}",
    }


def _accepted() -> web.Response:
    return answered({"status": "OK"}, 202)
