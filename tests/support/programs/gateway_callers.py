"""Two programs that call a Gateway from processes of their own: many triggers at once, and a prober of `/healthz`.

`python -m tests.support.programs.gateway_callers trigger|probe`, with `{"port", "ca", "token", "count"}` on standard
input; the result is one JSON line. A prober writes `ready` first, and ends when its standard input does. Neither shares
an event loop with what it calls, nor with the other, so a time that is measured here is the Gateway's.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

Answer = tuple[int, dict[str, str]]
Call = Callable[..., Awaitable[Answer]]
CALL_SECONDS = 250.0
PROBE_SECONDS = 20.0
PAUSE_SECONDS = 0.02


async def main(what: str, asked: dict[str, Any]) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=asked["ca"])
    gateway = Gateway(asked["port"], context, asked["token"])
    return await (trigger_at_once(gateway, asked["count"]) if what == "trigger" else probe(gateway))


class Gateway:
    def __init__(self, port: int, context: ssl.SSLContext, token: str) -> None:
        self._port = port
        self._context = context
        self._token = token

    async def call(self, method: str, path: str, body: bytes = b"") -> Answer:
        """On a connection of its own; status and headers."""
        async with self.kept() as call:
            return await call(method, path, body)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[Call]:
        """One connection for several calls."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._context, ssl_handshake_timeout=CALL_SECONDS
        )

        async def call(method: str, path: str, body: bytes = b"") -> Answer:
            writer.write(self._head(method, path, len(body)) + body)
            status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            await reader.readexactly(int(headers["content-length"]))
            return int(status.split()[1]), headers

        try:
            yield call
        finally:
            writer.transport.abort()

    def _head(self, method: str, path: str, size: int) -> bytes:
        sent = f"content-type: application/json\r\ncontent-length: {size}\r\nauthorization: Bearer {self._token}\r\n"
        return f"{method} {path} HTTP/1.1\r\nhost: trace\r\n{sent}\r\n".encode()


async def trigger_at_once(gateway: Gateway, count: int) -> dict[str, Any]:
    """How often each kind of answer came: a status, `unclear` for a refusal without Retry-After, or an error's name."""
    return dict(Counter(await asyncio.gather(*(_trigger(gateway, number) for number in range(count)))))


async def _trigger(gateway: Gateway, cursor: int) -> str:
    body = json.dumps({"cursor": cursor, "request_id": str(uuid4())}).encode()
    try:
        async with asyncio.timeout(CALL_SECONDS):
            status, headers = await gateway.call("POST", "/v1/dags/shop/jobs/fetch/trigger", body)
    except (OSError, EOFError, TimeoutError) as wrong:
        return type(wrong).__name__
    return str(status) if status == 200 or "retry-after" in headers else f"unclear {status}"


async def probe(gateway: Gateway) -> dict[str, Any]:
    """Until standard input ends, one probe after the other: on new connections, and on one that stays open."""
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with gateway.kept() as kept:
        await kept("GET", "/healthz")
        print("ready", flush=True)  # noqa: T201 - a program
        fresh, same = await asyncio.gather(_probes(ended, gateway.call), _probes(ended, kept))
    return {"new connections": fresh, "one connection": same}


async def _probes(ended: asyncio.Task[str], call: Call) -> dict[str, Any]:
    seconds: list[float] = []
    failed: list[str] = []
    while not ended.done():
        began = time.monotonic()
        answer = await _probe(call)
        seconds.append(time.monotonic() - began)
        failed += [answer] if answer != "200" else []
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ended), PAUSE_SECONDS)
    return {"probes": len(seconds), "failed": failed, "slowest": round(max(seconds), 3)}


async def _probe(call: Call) -> str:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            status, _ = await call("GET", "/healthz")
    except (OSError, EOFError, TimeoutError) as wrong:
        return type(wrong).__name__
    return str(status)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], json.loads(sys.stdin.readline())))))  # noqa: T201 - a program
