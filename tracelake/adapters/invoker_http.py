"""Functions by Lambda's Invoke call over HTTP: the host that Lite runs beside the Dispatcher answers it."""

from __future__ import annotations

import json
import ssl
from typing import Final
from uuid import UUID

import httpx

from tracelake.errors import ServiceUnavailable
from tracelake.ports import Invoked, Places
from tracelake.runtime.http_client import AsyncClient

PLACES: Final = "/places"
PATH: Final = "/2015-03-31/functions/udf/invocations"
SLACK_SECONDS: Final = 30.0
"""How much longer than the function's own limit an answer may take: it is the host that ends it."""
CONNECT_SECONDS: Final = 5.0
PLACES_SECONDS: Final = 5.0
ERROR_LENGTH: Final = 4_000
REFUSED: Final = frozenset({httpx.codes.BAD_REQUEST, httpx.codes.REQUEST_ENTITY_TOO_LARGE})


class HttpInvoker:
    def __init__(self, url: str, token: str, verify: ssl.SSLContext | bool) -> None:
        self._http = AsyncClient(
            base_url=url,
            verify=verify,
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def invoke(self, payload: bytes, *, org: UUID, timeout_seconds: float) -> Invoked:
        del org  # the runner reads it from the task's token
        wait = httpx.Timeout(timeout_seconds + SLACK_SECONDS, connect=CONNECT_SECONDS)
        try:
            answer = await self._http.post(PATH, content=payload, timeout=wait)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as wrong:
            return Invoked(f"the runner does not answer: {wrong or type(wrong).__name__}", started=False)
        except httpx.HTTPError as lost:
            return Invoked(f"the runner was lost while the function ran: {lost or type(lost).__name__}", lost=True)
        return _ended(answer)

    async def places(self) -> Places | None:
        try:
            answer = await self._http.get(PLACES, timeout=PLACES_SECONDS)
        except httpx.HTTPError as wrong:
            raise ServiceUnavailable(f"the runner does not answer: {wrong or type(wrong).__name__}") from None
        if answer.status_code == httpx.codes.NOT_FOUND:  # what speaks Lambda's API and nothing else
            return None
        try:
            answer.raise_for_status()
            places = answer.json()
            return Places(int(places["total"]), int(places["per_org"]))
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as wrong:
            raise ServiceUnavailable(f"the runner does not say how many places it has: {wrong}") from None

    async def close(self) -> None:
        await self._http.aclose()


def _ended(answer: httpx.Response) -> Invoked:
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        return Invoked("the runner has no room", started=False, busy=True)
    if answer.status_code in REFUSED:
        error = f"the runner refuses the task: {answer.text[:ERROR_LENGTH]}"
        return Invoked(error, started=False, refused=True)
    if answer.status_code != httpx.codes.OK:
        return Invoked(f"the runner answered {answer.status_code}: {answer.text[:ERROR_LENGTH]}", started=False)
    if "X-Amz-Function-Error" in answer.headers:
        return Invoked(_error(answer))
    return Invoked()


def _error(answer: httpx.Response) -> str:
    """`KeyError: 'value'`, as the function's runtime reports it."""
    try:
        error = json.loads(answer.content)
        kind, message = error.get("errorType") or "Error", error.get("errorMessage") or ""
    except (ValueError, AttributeError):
        return f"the function failed: {answer.text[:ERROR_LENGTH]}"
    return f"{kind}: {message}"[:ERROR_LENGTH]
