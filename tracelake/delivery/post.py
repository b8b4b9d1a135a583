"""One POST to a checked destination: no proxy, no redirect, no second look-up, and only the status is used."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import httpx

from tracelake.delivery.backoff import retry_after
from tracelake.delivery.check_address import Address, Destination
from tracelake.errors import InvalidRequest, Unavailable
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.read_body import bounded

TRIED: Final = 3
"""Addresses of one name."""
REST_SECONDS: Final = 1.0
"""How long the rest of an answer is waited for, once its status is known."""


@dataclass(frozen=True)
class ReceiverResponse:
    status: int
    retry_after: float | None
    """Seconds that the receiver asks for."""


class Sender:
    """Each delivery has its own connection: two names at one address share nothing."""

    def __init__(self, answer_bytes: int, context: ssl.SSLContext | None = None) -> None:
        self._answer_bytes = answer_bytes
        self._http = AsyncClient(
            verify=context or ssl.create_default_context(),
            trust_env=False,
            follow_redirects=False,
            timeout=None,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def post(self, place: Destination, body: bytes, headers: Mapping[str, str]) -> ReceiverResponse:
        """The receiver's answer; Unavailable if there is none. The caller sets the time limit."""
        wrong: Exception | None = None
        for address in place.addresses[:TRIED]:
            try:
                return await self._post(place, address, body, headers)
            except httpx.ConnectError as refused:  # nothing was sent
                wrong = refused
            except httpx.HTTPError as away:
                raise Unavailable(f"no answer: {type(away).__name__}") from None
        why = "its certificate does not hold" if "CERTIFICATE" in str(wrong) else "no server answers"
        raise Unavailable(f"it cannot be connected to: {why}")

    async def _post(
        self, place: Destination, address: Address, body: bytes, headers: Mapping[str, str]
    ) -> ReceiverResponse:
        scheme = "https" if place.tls else "http"
        host = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004 - of IP
        request = self._http.build_request(
            "POST",
            httpx.URL(f"{scheme}://{host}:{place.port}").copy_with(raw_path=place.path.encode()),
            content=body,
            headers={**headers, "host": place.host_header},
            extensions={"sni_hostname": place.host} if place.tls else {},
        )
        answer = await self._http.send(request, stream=True)
        try:
            response = ReceiverResponse(
                answer.status_code, retry_after(answer.headers.get("retry-after"), datetime.now(UTC))
            )
            await self._rest(answer)
            return response
        finally:
            await answer.aclose()

    async def _rest(self, answer: httpx.Response) -> None:
        """Reads some of the body, so that its writer is not cut off; nothing in it counts."""
        with suppress(httpx.HTTPError, TimeoutError, InvalidRequest):
            async with asyncio.timeout(REST_SECONDS):
                async for _ in bounded(answer.aiter_raw(), self._answer_bytes):
                    pass
