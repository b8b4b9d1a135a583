"""Which user stands behind a bearer token. The token proves who; the users table says what he may."""

from __future__ import annotations

import jwt

from trace_platform.client import DispatcherClient, UserAnswer
from trace_platform.errors import NotFound, SettingsError, Unauthenticated
from trace_platform.settings import IdentitySettings


async def user_of(authorization: str | None, identity: IdentitySettings, dispatcher: DispatcherClient) -> UserAnswer:
    subject = _subject(_bearer(authorization), identity)
    try:
        return await dispatcher.user(subject)
    except NotFound:
        raise Unauthenticated(
            "the token is good, but its user is not known here", where="header Authorization"
        ) from None


def _bearer(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated(
            "this door asks for a user's token",
            where="header Authorization",
            hint="send `Authorization: Bearer <token>`; `trace up --ready-file F` writes one into F",
        )
    return token


def _subject(token: str, identity: IdentitySettings) -> str:
    if identity.user_public_key is None:
        raise SettingsError("identity.user_public_key is not set", where="identity.user_public_key")
    try:
        claims = jwt.decode(
            token,
            identity.user_public_key,
            algorithms=["ES256"],
            audience=identity.user_audience,
            issuer=identity.user_issuer,
            options={"require": ["exp", "iat", "sub", "iss", "aud"]},
        )
    except jwt.InvalidTokenError as wrong:
        raise Unauthenticated(f"the token does not hold: {wrong}", where="header Authorization") from None
    return str(claims["sub"])
