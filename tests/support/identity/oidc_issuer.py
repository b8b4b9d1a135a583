"""An OIDC issuer: signs tokens with keys that rotate, and publishes them over HTTPS."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.tls import tls_in
from tracelake.runtime.listeners import Listener, json_response, open_listeners
from tracelake.settings import TlsSettings

ISSUER, AUDIENCE = "https://login", "me"


def public_key(key: Any) -> dict[str, Any]:
    """The public half as a JSON Web Key, without a name."""
    kind: Any = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    found: dict[str, Any] = json.loads(kind.to_jwk(key.public_key()))
    return found


@dataclass
class OidcIssuer:
    keys: dict[str, Any]
    published: list[str]
    url: str = ""
    tls: TlsSettings = field(default_factory=TlsSettings)
    fetched: int = 0
    """How often the keys were fetched."""

    async def publish(self, request: Request) -> Response:
        del request
        self.fetched += 1
        found = [public_key(self.keys[kid]) | {"kid": kid} for kid in self.published]
        return json_response({"keys": [*found, {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"}]})

    def token(self, subject: str, *, kid: str = "one", **claims: Any) -> str:
        """Holds for an hour; a claim that is given replaces the usual one."""
        return self.signed(kid, "RS256" if kid == "one" else "ES256", self.keys[kid], subject, **claims)

    def signed(self, kid: str | None, algorithm: str, key: Any, subject: str, **claims: Any) -> str:
        now = datetime.now(UTC)
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + timedelta(hours=1)}
        return jwt.encode(usual | claims, key, algorithm=algorithm, headers={"kid": kid} if kid else None)


@cache
def _rsa_key() -> rsa.RSAPrivateKey:
    """Made once: that takes as long as a whole login test."""
    return rsa.generate_private_key(65537, 2048)


@asynccontextmanager
async def oidc_issuer(folder: Path) -> AsyncIterator[OidcIssuer]:
    """Has an RSA key `one`, which is published, and an elliptic one, `two`."""
    tls = tls_in(folder / "tls")
    keys = {"one": _rsa_key(), "two": ec.generate_private_key(ec.SECP256R1())}
    issuer = OidcIssuer(keys, ["one"], tls=tls)
    service = Listener("issuer", "127.0.0.1", 0, Starlette(routes=[Route("/keys", issuer.publish)]))
    async with open_listeners([service], tls) as at:
        issuer.url = f"{at['issuer']}/keys"
        yield issuer
