"""Finds the user of a bearer token. The token proves the identity; the users table has the rights."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import Any

import jwt
from fastapi import Request

from tracelake.capability.jws import is_canonical
from tracelake.domain.access.service_tokens import hash_token
from tracelake.domain.access.subjects import MAX_SUBJECT, USER_TOKEN, token_named
from tracelake.errors import SettingsError, Unauthenticated
from tracelake.gateway.first_logins import HINT as ADDED_BY_ADMIN
from tracelake.gateway.first_logins import FirstLogins
from tracelake.gateway.issuer_keys import fetch_from, user_keys
from tracelake.gateway.refusals import note_shown
from tracelake.gateway.user_tokens import REFUSED, UserTokens
from tracelake.runtime.request_middleware import address_of
from tracelake.settings import IdentitySettings, TlsSettings

DAY = 24 * 3600
SKEW_SECONDS = 60
REFUSED_FIELDS = frozenset({"jku", "jwk", "x5u", "x5c", "crit", "b64", "zip", "enc"})
"""Fields of a header that bring or fetch a key, or change how the rest is to be read."""
WHERE = "header Authorization"
HINT = "get a new one from the identity provider; in Lite, `trace token` prints one"

UNKNOWN_USER = "the token is valid, but its subject is no user of this system"


def unknown_user(named: str) -> Unauthenticated:
    """The Dispatcher does not know the user, or no longer the personal access token."""
    if token_named(named) is not None:
        return Unauthenticated(REFUSED, where=WHERE)
    return Unauthenticated(UNKNOWN_USER, where=WHERE, hint=ADDED_BY_ADMIN)


class UnknownKey(jwt.InvalidTokenError):
    """The token names a key that the issuer does not publish."""


class UserGate:
    """Verifies user tokens: by the keys that an OIDC issuer publishes, or by the local issuer's one.

    Personal access tokens are known to the Dispatcher.
    """

    def __init__(
        self, identity: IdentitySettings, tls: TlsSettings, tokens: UserTokens, first_logins: FirstLogins
    ) -> None:
        self._identity, self._tokens, self._first_logins = identity, tokens, first_logins
        url = identity.user_jwks_url
        self._keys = user_keys(fetch_from(url, tls)) if url is not None else None

    async def subject(self, request: Request) -> str:
        """The `sub` of a valid token, or the name of a personal one. Worker tokens and capabilities are refused."""
        token = _bearer(request.headers.get("authorization"))
        if token.startswith(USER_TOKEN):
            note_shown(request, "personal_token", hash_token(token).hex())
            return await self._tokens.user(token, WHERE)
        note_shown(request, "user_token", hash_token(token).hex())
        claims = await self._verified(token)
        subject = _checked(claims["sub"])
        note_shown(request, "unknown_user", subject)
        await self._first_logins.ensure_user(subject, claims, address_of(request), WHERE)
        return subject

    async def _verified(self, token: str) -> Mapping[str, Any]:
        try:
            _refuse_ambiguous(token)
            key, algorithm = await self._key_of(token)
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._identity.user_audience,
                issuer=self._identity.user_issuer,
                options={"require": ["exp", "iat", "sub", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, OverflowError, RecursionError) as wrong:
            raise Unauthenticated(_why_not(wrong), where=WHERE, hint=HINT) from None
        self._refuse_long_life(claims)
        return claims

    def _refuse_long_life(self, claims: Mapping[str, Any]) -> None:
        """The library has seen that they are numbers, and that `exp` is not past."""
        longest = self._identity.user_token_max_days * DAY
        issued, ends = int(claims["iat"]), int(claims["exp"])
        if ends - issued > longest or ends > time.time() + longest + SKEW_SECONDS:
            raise Unauthenticated(
                f"the token holds for longer than {self._identity.user_token_max_days} days",
                where=WHERE,
                hint="get one that ends earlier; see the setting identity.user_token_max_days",
            )

    async def _key_of(self, token: str) -> tuple[Any, str]:
        """The key, and the one algorithm that it may be used with: the token's own choice is never followed."""
        if self._keys is not None:
            kid = jwt.get_unverified_header(token).get("kid")
            self._keys.refresh_when_old()
            found = await self._keys.find(kid if kid is None else str(kid))
            if found is None:
                raise UnknownKey
            return found, found.algorithm_name
        if not is_canonical(_decoded(token.rpartition(".")[2])):
            # Only here: an issuer that is not ours may sign either way.
            raise jwt.InvalidSignatureError("its signature is not spelled as `trace token` does")
        if self._identity.user_public_key is None:
            raise SettingsError("identity.user_public_key is not set", where="identity.user_public_key")
        return self._identity.user_public_key, "ES256"


def _refuse_ambiguous(token: str) -> None:
    """Refuses a key or rules in the header, and repeated names: two parsers could read them differently."""
    header, _ = (json.loads(_decoded(part), object_pairs_hook=_each_once) for part in token.split(".")[:2])
    if isinstance(header, dict) and (found := sorted(header.keys() & REFUSED_FIELDS)):
        raise jwt.InvalidTokenError(f"its header has `{found[0]}`, which is never followed here")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise jwt.InvalidTokenError("a name is there twice in it")
    return found


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _bearer(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated(
            "this API needs a user's token",
            where=WHERE,
            hint="send `Authorization: Bearer <token>`; in Lite, `trace token` makes one",
        )
    return token


def _why_not(wrong: Exception) -> str:
    """For the person who sent it; the library's messages are about its own parsing."""
    if isinstance(wrong, jwt.MissingRequiredClaimError):
        return f"the token lacks the claim `{wrong.claim}`"
    reasons: dict[type[Exception], str] = {
        jwt.ExpiredSignatureError: "the token has expired",
        jwt.ImmatureSignatureError: "the token is not valid yet: its time is in the future",
        jwt.InvalidIssuedAtError: "the token is not valid yet: its time is in the future",
        jwt.InvalidIssuerError: "the token comes from another issuer than this system trusts",
        jwt.InvalidAudienceError: "the token is made for another audience than this system",
        jwt.InvalidSignatureError: "the token was not signed by the issuer that this system trusts",
        jwt.InvalidAlgorithmError: "the token is signed in a way that this system does not accept",
        UnknownKey: "the token was signed by a key that is not one of the issuer's",
    }
    if message := next((message for kind, message in reasons.items() if isinstance(wrong, kind)), None):
        return message
    if isinstance(wrong, jwt.InvalidTokenError) and not isinstance(wrong, jwt.DecodeError):
        return f"the token cannot be used: {str(wrong)[:200]}"
    return "this is not a token: a token has three parts with a dot between them, as it was issued"


def _checked(subject: Any) -> str:
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT or not subject.isprintable():
        raise Unauthenticated(f"the token's `sub` is not a text of 1 to {MAX_SUBJECT} characters", where=WHERE)
    return subject
