"""A line to moto on which AWS fails as a test wants it to: refusals, lost answers, cut connections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import ClientSession, web


@dataclass(frozen=True)
class Refusal:
    code: str
    status: int = 400
    message: str = ""


@dataclass
class FaultyAws:
    moto: str
    url: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The operation and the parameters of every request."""
    refused: int = 0
    """How many requests."""
    refuses: Callable[[str, web.Request], Refusal | None] = lambda _operation, _request: None
    changes: Callable[[str, dict[str, Any]], dict[str, Any] | None] = lambda _operation, _answer: None
    """Another answer than that of moto, which has done as it was asked."""
    cuts: Callable[[str], bool] = lambda _operation: False
    """Whether the answer is lost, and the connection with it."""

    holds: Callable[[str, dict[str, Any]], Awaitable[None]] | None = None
    """What a request waits for before it is answered."""

    def refuse(self, operation: str, refusal: Refusal, times: int = 10**9) -> None:
        """The next so many requests."""
        left = [times]

        def refuses(asked: str, _request: web.Request) -> Refusal | None:
            if asked != operation or not left[0]:
                return None
            left[0] -= 1
            return refusal

        self.refuses = refuses

    def requests(self, operation: str) -> list[dict[str, Any]]:
        return [parameters for asked, parameters in self.asked if asked == operation]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if "X-Amz-Target" not in request.headers:
            return await self._answer_form(request, body)
        operation = request.headers["X-Amz-Target"].partition(".")[2]
        self.asked.append((operation, json.loads(body)))
        if self.holds is not None:
            await self.holds(operation, self.asked[-1][1])
        if refusal := self.refuses(operation, request):
            self.refused += 1
            said = {"__type": refusal.code, "message": refusal.message}
            return web.json_response(said, status=refusal.status, content_type="application/x-amz-json-1.0")
        async with (
            ClientSession() as line,
            line.post(self.moto, data=body, headers=_passed(request)) as theirs,
        ):
            answer, status = await theirs.read(), theirs.status
            kept = {name: value for name, value in theirs.headers.items() if name.lower().startswith(("x-amz", "date"))}
        if self.cuts(operation) and request.transport is not None:
            request.transport.close()
        if status < 300 and (changed := self.changes(operation, json.loads(answer or b"{}"))) is not None:
            answer = json.dumps(changed).encode()
        return web.Response(body=answer, status=status, content_type="application/x-amz-json-1.0", headers=kept)

    async def _answer_form(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """Of services whose requests are forms and whose answers are XML (CloudWatch)."""
        parameters = dict(parse_qsl(body.decode()))
        operation = parameters["Action"]
        self.asked.append((operation, parameters))
        if refusal := self.refuses(operation, request):
            self.refused += 1
            text = f"<Error><Code>{refusal.code}</Code><Message>{refusal.message}</Message></Error>"
            return web.Response(text=f"<ErrorResponse>{text}</ErrorResponse>", status=refusal.status)
        async with ClientSession() as line, line.post(self.moto, data=body, headers=_passed(request)) as theirs:
            answer, status = await theirs.read(), theirs.status
        if self.cuts(operation) and request.transport is not None:
            request.transport.close()
        return web.Response(body=answer, status=status)


@asynccontextmanager
async def faulty_aws(moto: str) -> AsyncIterator[FaultyAws]:
    faulty, app = FaultyAws(moto), web.Application(client_max_size=2**24)
    app.router.add_post("/{path:.*}", faulty.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    faulty.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield faulty
    finally:
        await runner.cleanup()


def _passed(request: web.Request) -> dict[str, str]:
    wanted = ("x-amz", "authorization", "content-type")
    return {name: value for name, value in request.headers.items() if name.lower().startswith(wanted)}
