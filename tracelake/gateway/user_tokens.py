"""Finds the user of a personal access token: the Dispatcher knows the hashes, and is asked at most every few seconds.

What is remembered is the token's id alone. The services look at the token again for each call, so that one that was
revoked is refused at once, and one whose user was demoted allows less.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from tracelake.domain.access.service_tokens import hash_token
from tracelake.domain.access.subjects import USER_TOKEN, token_name
from tracelake.errors import NotFound, Unauthenticated

REMEMBERED_SECONDS: Final = 3.0
MOST_REMEMBERED: Final = 10_000
TOKEN: Final = re.compile(rf"{USER_TOKEN}[A-Za-z0-9_-]{{43}}")
REFUSED: Final = "the personal access token is unknown, has expired or was revoked"
HINT: Final = "`trace token create` makes one"

Find = Callable[[bytes], Awaitable[UUID]]


class UserTokens:
    def __init__(self, find: Find, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._find, self._monotonic = find, monotonic
        self._known: dict[bytes, tuple[float, UUID]] = {}

    async def user(self, token: str, where: str) -> str:
        """How the services are to name the user."""
        if TOKEN.fullmatch(token) is None:
            raise Unauthenticated("this is not a personal access token as it was shown", where=where, hint=HINT)
        hashed = hash_token(token)
        until, found = self._known.get(hashed, (0.0, None))
        if found is None or until <= self._monotonic():
            found = await self._look_up(hashed, where)
        return token_name(found)

    async def _look_up(self, hashed: bytes, where: str) -> UUID:
        self._known.pop(hashed, None)
        try:
            found = await self._find(hashed)
        except NotFound:
            raise Unauthenticated(REFUSED, where=where, hint=HINT) from None
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[hashed] = self._monotonic() + REMEMBERED_SECONDS, found
        return found
