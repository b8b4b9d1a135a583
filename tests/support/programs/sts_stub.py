"""An STS as far as AssumeRole goes, over HTTP: it records requests, and returns keys that open nothing.

`python -m tests.support.programs.sts_stub` serves until its standard input ends, and writes its address first.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

from aiohttp import web

ANSWER = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIA{n:016d}</AccessKeyId><SecretAccessKey>secret-{n}</SecretAccessKey><SessionToken>token-{n}</SessionToken>
<Expiration>{until}</Expiration></Credentials><AssumedRoleUser><AssumedRoleId>AROA:{name}</AssumedRoleId>
<Arn>arn:aws:sts::000000000000:assumed-role/r/{name}</Arn></AssumedRoleUser></AssumeRoleResult></AssumeRoleResponse>"""
REFUSAL = "<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"


class StsStub:
    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.signed: list[str] = []
        """With which key each request was: `KEY/date/region/...`."""
        self.refuses: tuple[int, str] | None = None
        self.times = 10**9
        """How many requests are refused."""
        self.held = asyncio.Event()
        """Answers wait until it is set."""
        self.held.set()
        self.heard = asyncio.Event()
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        asked = dict(parse_qsl(await request.text()))
        self.asked.append(asked)
        self.heard.set()
        await self.held.wait()
        self.signed.append(request.headers.get("Authorization", "").partition("Credential=")[2])
        if self.refuses is not None and self.times:
            self.times -= 1
            status, code = self.refuses
            return web.Response(status=status, text=REFUSAL.format(code=code), content_type="text/xml")
        until = datetime.now(UTC) + timedelta(seconds=int(asked["DurationSeconds"]))
        said = {"n": len(self.asked), "name": asked["RoleSessionName"], "until": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
        return web.Response(text=ANSWER.format(**said), content_type="text/xml")


@asynccontextmanager
async def an_sts() -> AsyncIterator[StsStub]:
    stub, app = StsStub(), web.Application()
    app.router.add_post("/", stub.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield stub
    finally:
        await runner.cleanup()


async def _serve() -> None:
    async with an_sts() as stub:
        sys.stdout.write(f"{stub.url}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
