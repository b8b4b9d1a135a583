"""Limits how many queries run and wait at once, and for how long; reserves some slots for users.

A backlog of tasks may send queries without a pause. It never takes the slots reserved for users, nor the places of
waiting users: each kind has its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

from tracelake.errors import Busy

Kind = Literal["user", "task"]


@dataclass(frozen=True, eq=False)
class _Waiter:
    kind: Kind
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Slots:
    """Belongs to one event loop. Slots are given in the order of the requests, within the limit of each kind."""

    def __init__(self, running: int, waiting: int, seconds: float, *, for_users: int = 0) -> None:
        self._all = running
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

    async def take(self, kind: Kind) -> None:
        if self._is_free(kind):  # then no query of this kind waits, since a freed slot goes to a waiting query
            self._running[kind] += 1
            return
        if sum(waiter.kind == kind for waiter in self._waiters) >= self._room:
            raise _busy()
        waiter = _Waiter(kind)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._seconds):
                await waiter.turn
        except BaseException as given_up:
            if waiter.turn.done() and not waiter.turn.cancelled():  # it got a slot at the same moment
                self.give_back(kind)
            else:
                self._waiters.remove(waiter)
            if isinstance(given_up, TimeoutError):
                raise _busy() from None
            raise

    def give_back(self, kind: Kind) -> None:
        self._running[kind] -= 1
        following = next((waiter for waiter in self._waiters if self._is_free(waiter.kind)), None)
        if following is not None:
            self._waiters.remove(following)
            self._running[following.kind] += 1
            following.turn.set_result(None)

    def _is_free(self, kind: Kind) -> bool:
        return self.running < self._all and (kind == "user" or self._running["task"] < self._for_tasks)


def _busy() -> Busy:
    return Busy("as many queries run and wait as can be served", hint="retry in a moment")
