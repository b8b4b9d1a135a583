"""A caller of the Dispatchers of a fault test: it repeats a call until one of them answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from tests.support.identity.service_tokens import AnyService
from tests.support.systems.processes import System, is_ready, url_of
from tests.support.tls import https
from tests.support.waiting import SECONDS, until
from tracelake.store.first_start import FIRST_ADMIN
from tracelake.wire.calls.user_calls import USER

CALL_SECONDS = 60.0


class Caller:
    """Repeats a call until it is answered, whichever process dies: if need be, to the next Dispatcher."""

    def __init__(self, http: httpx.AsyncClient, listeners: list[tuple[int, int]]) -> None:
        self._http = http
        self._listeners = listeners

    async def user(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {USER: FIRST_ADMIN, "content-type": "application/json"}
        return await self._retry(method, 1, f"/internal/v1{path}", body, headers)

    async def got(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a user's call, which must be accepted."""
        status, answer = await self.user(method, path, body)
        assert status == httpx.codes.OK, answer
        return answer

    async def deployed(self, dag: str, text: str) -> str:
        """The id of a version that is not active yet."""
        return str((await self.got("POST", f"/dags/{dag}/versions", {"yaml": text}))["dag_version_id"])

    async def activate(self, dag: str, version: str) -> None:
        await self.got("PUT", f"/dags/{dag}/active", {"dag_version_id": version})

    async def internal(self, path: str, body: Any) -> tuple[int, Any]:
        return await self._retry("POST", 1, path, body, {})

    async def once(self, path: str, body: Any) -> None:
        """One call that a Dispatcher dies of: it raises HTTPError."""
        headers = {USER: FIRST_ADMIN, "content-type": "application/json"}
        await self._http.post(url_of(self._listeners[0][1]) + path, content=msgspec.json.encode(body), headers=headers)

    async def task(self, path: str, body: Any, capability: str) -> tuple[int, Any]:
        return await self._retry("POST", 0, path, body, {"x-trace-task-capability": capability})

    async def until_ready(self, replica: int) -> None:
        """Until this Dispatcher has queried its databases, and has answered."""
        url = url_of(self._listeners[replica][1]) + "/readyz"
        await until(lambda: is_ready(self._http, url), f"{url} answers", ignoring=(httpx.HTTPError,))

    async def _retry(
        self, method: str, listener: int, path: str, body: Any, headers: dict[str, str]
    ) -> tuple[int, Any]:
        content = b"" if body is None else msgspec.json.encode(body)
        tries = random.randrange(len(self._listeners))  # noqa: S311 - any of them will do
        async with asyncio.timeout(SECONDS):
            while True:
                url = url_of(self._listeners[tries % len(self._listeners)][listener]) + path
                tries += 1
                try:
                    answer = await self._http.request(method, url, content=content, headers=headers)
                except httpx.HTTPError:
                    await asyncio.sleep(0.02)
                    continue
                if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                    return answer.status_code, answer.json()
                assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
                await asyncio.sleep(0.02)


@asynccontextmanager
async def calling(system: System, *, replicas: int = 1, seconds: float = CALL_SECONDS) -> AsyncIterator[Caller]:
    """`seconds`: how long a response is waited for: shorter only where a Dispatcher may freeze.

    A killed process closes its connections. A frozen one executes late what was requested, maybe after the opposite was
    requested: `Traffic.late` must know of it.
    """
    async with https("", system.tls.ca, timeout=seconds, auth=AnyService()) as http:
        yield Caller(http, system.listeners[:replicas])
