"""Makes users at their first login: sends what the rules of `login_rules` look at to the Dispatcher.

Of a token, only the claims with the values that a rule names are sent. A token that matches no rule is not sent at all.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from tracelake.domain.access.subjects import why_no_email
from tracelake.errors import Unauthenticated
from tracelake.settings import LoginRule
from tracelake.wire.internal.identity import LoginClaim, UserLoginAnswer, UserLoginRequest

REMEMBERED_SECONDS: Final = 3.0
MOST_REMEMBERED: Final = 10_000
HINT: Final = "ask an admin of your organisation to add you: `trace user add`"

LogIn = Callable[[UserLoginRequest], Awaitable[UserLoginAnswer]]


class FirstLogins:
    def __init__(
        self, rules: Mapping[str, LoginRule], log_in: LogIn, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wanted = sorted({(rule.claim, rule.value) for rule in rules.values()})
        self._log_in, self._monotonic = log_in, monotonic
        self._known: dict[tuple[str, tuple[LoginClaim, ...]], tuple[float, UserLoginAnswer]] = {}

    async def ensure_user(self, subject: str, token: Mapping[str, Any], origin: str, where: str) -> None:
        """Returns if the subject is a user, or if no rule matches the token: the services know whether it is one."""
        claims = matching_claims(self._wanted, token)
        if not claims:
            return
        until, answer = self._known.get((subject, claims), (0.0, None))
        if answer is None or until <= self._monotonic():
            request = UserLoginRequest(subject=subject, claims=claims, origin=origin[:64], email=verified_email(token))
            answer = await self._ask(request)
        if answer.refused is not None:
            raise Unauthenticated(f"the token is valid, but {answer.refused}", where=where, hint=HINT)

    async def _ask(self, request: UserLoginRequest) -> UserLoginAnswer:
        answer = await self._log_in(request)
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[request.subject, request.claims] = self._monotonic() + REMEMBERED_SECONDS, answer
        return answer


def matching_claims(wanted: Sequence[tuple[str, str]], token: Mapping[str, Any]) -> tuple[LoginClaim, ...]:
    """A claim is a text, or a list of which the texts count; anything else matches nothing."""
    return tuple(LoginClaim(claim=claim, value=value) for claim, value in wanted if _holds(token.get(claim), value))


def _holds(claim: Any, value: str) -> bool:
    return claim == value if isinstance(claim, str) else isinstance(claim, list) and value in claim


def verified_email(token: Mapping[str, Any]) -> str | None:
    """Only one that the issuer says it has verified."""
    email = token.get("email")
    is_good = isinstance(email, str) and token.get("email_verified") is True and why_no_email(email) is None
    return email if is_good else None
