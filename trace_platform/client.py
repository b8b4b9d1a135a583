"""Typed calls to the Dispatcher's doors, for every process that is not the Dispatcher."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import msgspec

from trace_platform.errors import DoorUnavailable, NotFound, SettingsError
from trace_platform.settings import Settings
from trace_platform.tls import client_context
from trace_platform.user_calls import USER

WORKER_TOKEN = "X-Trace-Worker-Token"  # noqa: S105 - a header's name


class UserAnswer(msgspec.Struct, frozen=True):
    id: UUID
    org_id: UUID
    org_slug: str
    email: str | None
    role: str


class DispatcherClient:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ready(self) -> None:
        """Raise DoorUnavailable unless the Dispatcher and its database answer."""
        await self._get("/readyz")

    async def user(self, external_id: str) -> UserAnswer:
        answer = await self._get("/internal/user", external_id=external_id)
        return msgspec.json.decode(answer.content, type=UserAnswer)

    async def ask(
        self, method: str, path: str, user: str, *, query: str = "", body: bytes = b"", content_type: str | None = None
    ) -> httpx.Response:
        """A call of the user API, for a user whose token was verified. A refusal is handed back as it was said."""
        # Percent-encoded, because a subject may be any text and a header may not.
        headers = {USER: quote(user, safe="")} | ({"content-type": content_type} if content_type else {})
        try:
            return await self._http.request(method, f"{path}?{query}" if query else path, content=body, headers=headers)
        except httpx.HTTPError as away:
            raise DoorUnavailable(f"the Dispatcher does not answer: {away or type(away).__name__}") from None

    async def _get(self, path: str, **parameters: str) -> httpx.Response:
        try:
            answer = await self._http.get(path, params=parameters)
        except httpx.HTTPError as away:
            raise DoorUnavailable(f"the Dispatcher does not answer: {away or type(away).__name__}") from None
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise NotFound(_message(answer), where=path)
        if answer.is_error:
            raise DoorUnavailable(f"the Dispatcher answered {answer.status_code}: {_message(answer)}", where=path)
        return answer


@asynccontextmanager
async def dispatcher_client(settings: Settings) -> AsyncIterator[DispatcherClient]:
    url, token = settings.endpoints.dispatcher_internal, settings.identity.worker_token
    if url is None or token is None:
        missing = "endpoints.dispatcher_internal" if url is None else "identity.worker_token"
        raise SettingsError(f"{missing} is not set", where=missing, hint="`trace up` fills it in")
    headers = {WORKER_TOKEN: token.get_secret_value()}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, verify=client_context(settings.tls.ca), timeout=10
    ) as http:
        yield DispatcherClient(http)


def _message(answer: httpx.Response) -> str:
    try:
        body: Any = answer.json()
        return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
