"""Limits how many queries run and wait at once, and for how long; reserves some slots for users.

A backlog of tasks may send queries without a pause. It never takes the slots reserved for users, nor the places of
waiting users: each kind has its own. Nor does one organisation take the slots of all, or the places to wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from tracelake.errors import Busy

Kind = Literal["user", "task"]


@dataclass(frozen=True, eq=False)
class _Waiter:
    kind: Kind
    org_id: UUID | None
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Slots:
    """Belongs to one event loop.

    A slot goes to the organisation that has the fewest, and within that to the first that waits, within the limit of
    each kind.
    """

    def __init__(
        self, running: int, waiting: int, seconds: float, *, for_users: int = 0, per_org: int | None = None
    ) -> None:
        """`waiting`: of one kind and organisation. `per_org`: how many of one organisation run at once."""
        self._all = running
        self._per_org = running if per_org is None else per_org
        self._by_org: Counter[UUID | None] = Counter()
        self._for_tasks = max(1, running - for_users)
        self._room = waiting
        self._seconds = seconds
        self._running: Counter[Kind] = Counter()
        self._waiters: deque[_Waiter] = deque()

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    async def take(self, kind: Kind, org_id: UUID | None = None) -> None:
        if self._is_free(kind, org_id):  # then none waits that may have it, since a freed slot goes to a waiting query
            self._give(kind, org_id)
            return
        if sum((waiter.kind, waiter.org_id) == (kind, org_id) for waiter in self._waiters) >= self._room:
            raise _busy()
        waiter = _Waiter(kind, org_id)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._seconds):
                await waiter.turn
        except BaseException as given_up:
            if waiter.turn.done() and not waiter.turn.cancelled():  # it got a slot at the same moment
                self.give_back(kind, org_id)
            else:
                self._waiters.remove(waiter)
            if isinstance(given_up, TimeoutError):
                raise _busy() from None
            raise

    def give_back(self, kind: Kind, org_id: UUID | None = None) -> None:
        self._running[kind] -= 1
        self._by_org[org_id] -= 1
        if not self._by_org[org_id]:
            del self._by_org[org_id]
        free = (waiter for waiter in self._waiters if self._is_free(waiter.kind, waiter.org_id))
        following = min(free, key=lambda waiter: self._by_org[waiter.org_id], default=None)  # of equals, the first
        if following is not None:
            self._waiters.remove(following)
            self._give(following.kind, following.org_id)
            following.turn.set_result(None)

    def _give(self, kind: Kind, org_id: UUID | None) -> None:
        self._running[kind] += 1
        self._by_org[org_id] += 1

    def _is_free(self, kind: Kind, org_id: UUID | None) -> bool:
        of_kind = kind == "user" or self._running["task"] < self._for_tasks
        return self.running < self._all and of_kind and self._by_org[org_id] < self._per_org


def _busy() -> Busy:
    return Busy("as many queries run and wait as can be served", hint="retry in a moment")
