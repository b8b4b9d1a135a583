"""Which user stands behind a bearer token. The token proves who; the users table says what he may."""

from __future__ import annotations

from typing import Any

import jwt

from trace_platform.errors import SettingsError, Unauthenticated
from trace_platform.gateway.user_keys import UserKeys, fetch_from
from trace_platform.settings import IdentitySettings, TlsSettings

MAX_SUBJECT = 255
WHERE = "header Authorization"


class UserGate:
    """Verifies user tokens: by the keys that an OIDC issuer publishes, or by the local issuer's one."""

    def __init__(self, identity: IdentitySettings, tls: TlsSettings) -> None:
        self._identity = identity
        url = identity.user_jwks_url
        self._keys = UserKeys(fetch_from(url, tls)) if url is not None else None

    async def subject(self, authorization: str | None) -> str:
        """The `sub` of a good token. A worker token or a task's capability is none."""
        token = _bearer(authorization)
        try:
            key, algorithm = await self._key_of(token)
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._identity.user_audience,
                issuer=self._identity.user_issuer,
                options={"require": ["exp", "iat", "sub", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, OverflowError, RecursionError) as wrong:
            raise Unauthenticated(f"the token does not hold: {str(wrong)[:200]}", where=WHERE) from None
        return _checked(claims["sub"])

    async def _key_of(self, token: str) -> tuple[Any, str]:
        """The key, and the one algorithm that it may be used with: what the token itself says is never followed."""
        if self._keys is not None:
            kid = jwt.get_unverified_header(token).get("kid")
            found = await self._keys.find(kid if kid is None else str(kid))
            if found is None:
                raise jwt.InvalidTokenError("its key is not one of the issuer's")
            return found, found.algorithm_name
        if self._identity.user_public_key is None:
            raise SettingsError("identity.user_public_key is not set", where="identity.user_public_key")
        return self._identity.user_public_key, "ES256"


def _bearer(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated(
            "this door asks for a user's token",
            where=WHERE,
            hint="send `Authorization: Bearer <token>`; in Lite, `trace token` makes one",
        )
    return token


def _checked(subject: Any) -> str:
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT or not subject.isprintable():
        raise Unauthenticated(f"the token's `sub` is not a text of 1 to {MAX_SUBJECT} characters", where=WHERE)
    return subject
