"""A line to an S3 server on which requests are refused as a test wants it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import ClientSession, web

from tests.support.aws.faulty_aws import Refusal

ENDS = frozenset({"transfer-encoding", "content-encoding", "connection", "date", "server", "content-length"})


@dataclass
class FaultyS3:
    behind: str
    url: str = ""
    asked: list[str] = field(default_factory=list)
    """Method and address of each request."""
    refuses: Callable[[str], Refusal | None] = lambda _request: None

    def refuse(self, what: str, refusal: Refusal, times: int = 10**9) -> None:
        """The next so many requests whose method and address have this text."""
        left = [times]

        def refuses(asked: str) -> Refusal | None:
            if what not in asked or not left[0]:
                return None
            left[0] -= 1
            return refusal

        self.refuses = refuses

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body, asked = await request.read(), f"{request.method} {request.rel_url}"
        self.asked.append(asked)
        if refusal := self.refuses(asked):
            text = f"<Error><Code>{refusal.code}</Code><Message>{refusal.message}</Message></Error>"
            return web.Response(text=text, status=refusal.status, content_type="application/xml")
        headers = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
        content, to = io.BytesIO(body), self.behind + str(request.rel_url)
        async with (
            ClientSession(auto_decompress=False) as line,
            line.request(request.method, to, data=content, headers=headers) as theirs,
        ):
            kept = {name: value for name, value in theirs.headers.items() if name.lower() not in ENDS}
            return web.Response(body=await theirs.read(), status=theirs.status, headers=kept)


@asynccontextmanager
async def faulty_s3(behind: str) -> AsyncIterator[FaultyS3]:
    faulty, app = FaultyS3(behind), web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", faulty.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    faulty.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield faulty
    finally:
        await runner.cleanup()
