"""The keys that an OIDC issuer publishes to verify its users' tokens."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import jwt
import msgspec

from tracelake.capability.keyset import FETCH_SECONDS, FetchJwks, VerifierKeys
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.read_body import read_bounded
from tracelake.settings import TlsSettings

FLOOR_SECONDS: Final = 5.0
MAX_BYTES: Final = 256 * 1024


def user_keys(fetch: FetchJwks, monotonic: Callable[[], float] = time.monotonic) -> VerifierKeys[jwt.PyJWK]:
    return VerifierKeys(fetch, _signing_keys, issuer="the users' issuer", floor=FLOOR_SECONDS, monotonic=monotonic)


def fetch_from(url: str, tls: TlsSettings) -> FetchJwks:
    """The issuer's certificate may be of a public CA or of our own."""
    context = ssl.create_default_context()
    if tls.ca is not None:
        context.load_verify_locations(cafile=tls.ca)

    async def fetch() -> Mapping[str, Any]:
        async with (
            AsyncClient(verify=context, timeout=FETCH_SECONDS) as http,
            http.stream("GET", url) as answer,
        ):
            answer.raise_for_status()
            body = await read_bounded(answer.aiter_bytes(), MAX_BYTES, where=url)
        return msgspec.json.decode(body, type=dict[str, Any])

    return fetch


def _signing_keys(document: Mapping[str, Any]) -> dict[str | None, jwt.PyJWK]:
    """Public signing keys only: a shared secret (`oct`) would let everyone who knows it sign.

    A token may leave its key unnamed while the issuer has only one.
    """
    keys: dict[str | None, jwt.PyJWK] = {}
    for index, jwk in enumerate(document["keys"]):
        if jwk.get("kty") in {"RSA", "EC", "OKP"} and jwk.get("use", "sig") == "sig":
            try:
                keys[str(jwk.get("kid", index))] = jwt.PyJWK(jwk)
            except jwt.PyJWTError:
                continue  # the document may hold kinds of key that we do not know
    if not keys:
        raise ValueError("the key set has no key that can be used")
    return {None: next(iter(keys.values())), **keys} if len(keys) == 1 else keys
