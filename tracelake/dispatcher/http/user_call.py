"""A call of the user API that may be made, as its verb receives it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.signal import AfterCommit
from tracelake.store.identity import User


@dataclass(frozen=True)
class UserCall:
    """A call that may be made: by whom, about what, with what."""

    control: Control
    user: User
    path: Mapping[str, str]
    query: Any
    body: Any

    @property
    def org(self) -> UUID:
        return self.user.org_id

    @property
    def pool(self) -> asyncpg.Pool:
        return self.control.pool

    @property
    def after(self) -> AfterCommit:
        return self.control.after_commit


Verb = Callable[[UserCall], Awaitable[Any]]
