"""The keys by which an OIDC issuer's tokens are verified: fetched when a token names one that is not known.

Anybody can send tokens with made-up key ids, so fetches are paced: one at a time for all who wait, and never two within
a few seconds. Keys that are known stay good while the issuer is away.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import httpx
import jwt
import structlog

from tracelake.errors import ServiceUnavailable
from tracelake.runtime.http_client import AsyncClient
from tracelake.settings import TlsSettings

FLOOR_SECONDS: Final = 5.0
OLD_SECONDS: Final = 300.0
"""After this the set is fetched again even if nothing new was asked for, so that a revoked key goes."""
FETCH_SECONDS: Final = 5.0
MAX_BYTES: Final = 256 * 1024

Fetch = Callable[[], Awaitable[Mapping[str, Any]]]

log = structlog.get_logger(__name__)


class UserKeys:
    """Belongs to one event loop."""

    def __init__(self, fetch: Fetch, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._keys: dict[str, jwt.PyJWK] = {}
        self._began = -math.inf
        self._failed = True
        self._flight: asyncio.Task[None] | None = None

    async def find(self, kid: str | None) -> jwt.PyJWK | None:
        """None: there is no such key. ServiceUnavailable: that cannot be known at the moment."""
        if (flight := self._refresh_if_due(unknown=self._known(kid) is None)) and self._known(kid) is None:
            await asyncio.shield(flight)  # who stops waiting must not stop it for the others
        found = self._known(kid)
        if found is None and self._failed:
            raise ServiceUnavailable("the issuer's keys could not be fetched", hint="try again in a moment")
        return found

    def _known(self, kid: str | None) -> jwt.PyJWK | None:
        """A token may leave its key unnamed while the issuer has only one."""
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

    def _refresh_if_due(self, *, unknown: bool) -> asyncio.Task[None] | None:
        if self._flight is not None and not self._flight.done():
            return self._flight
        age = self._monotonic() - self._began
        if age < (FLOOR_SECONDS if unknown else OLD_SECONDS):
            return None
        self._began = self._monotonic()
        self._flight = asyncio.create_task(self._refresh())
        return self._flight

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                self._keys = _usable(await self._fetch())
            self._failed = False
        except Exception as wrong:  # noqa: BLE001 - whatever went wrong, the known keys stay good
            self._failed = True
            log.warning("the issuer's keys were not fetched", reason=str(wrong) or type(wrong).__name__)


def fetch_from(url: str, tls: TlsSettings) -> Fetch:
    """The issuer may be known to the world or only to our own CA."""
    context = ssl.create_default_context()
    if tls.ca is not None:
        context.load_verify_locations(cafile=tls.ca)

    async def fetch() -> Mapping[str, Any]:
        async with (
            AsyncClient(verify=context, timeout=FETCH_SECONDS) as http,
            http.stream("GET", url) as answer,
        ):
            answer.raise_for_status()
            body = bytearray()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise ValueError(f"the key set is larger than {MAX_BYTES} bytes")
        return dict(httpx.Response(200, content=bytes(body)).json())

    return fetch


def _usable(document: Mapping[str, Any]) -> dict[str, jwt.PyJWK]:
    """Public signing keys only: a shared secret (`oct`) would let whoever knows it sign."""
    found = {}
    for index, jwk in enumerate(document["keys"]):
        if jwk.get("kty") in {"RSA", "EC", "OKP"} and jwk.get("use", "sig") == "sig":
            try:
                found[str(jwk.get("kid", index))] = jwt.PyJWK(jwk)
            except jwt.PyJWTError:
                continue  # a kind of key that we do not know may stand beside one that we do
    if not found:
        raise ValueError("the key set holds no key that we can use")
    return found
