"""Limits how many queries run and wait at once, and for how long; reserves slots for users, for tasks and for new data.

A backlog of tasks may send queries without a pause, and so may users. Neither takes the slots that are reserved for the
other, nor its places to wait: each kind has its own. Of the slots for tasks, those of `bulk` priority leave some to new
data, and where both wait they get their share (`domain/flow/tiers.py`). Nor does one organisation take the slots of
all, or the places to wait; what is reserved is also reserved within it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from tracelake.domain.flow.pressure import Priority
from tracelake.domain.flow.tiers import TierShares
from tracelake.errors import Busy
from tracelake.query.checked_query import Caller
from tracelake.settings import FlowSettings, QuerySettings

Kind = Literal["user", "task", "bulk"]
"""Of a user, of a task, or of a task of `bulk` priority."""


def kind_of(caller: Caller) -> Kind:
    if caller.user_id is not None:
        return "user"
    return "bulk" if caller.priority is Priority.BULK else "task"


@dataclass(frozen=True)
class Reserved:
    """How many slots the other kinds never take, but for the last one that there is."""

    for_users: int = 0
    for_tasks: int = 0
    for_new_data: int = 0
    """Of those that tasks may take: `bulk` ones do not."""
    normal_share: int = 20
    """While both wait, so many queries are begun for each one of `bulk`."""


def reserved(query: QuerySettings, flow: FlowSettings) -> Reserved:
    return Reserved(query.user_slots, query.task_slots, flow.reserved_slots, flow.normal_share)


@dataclass(frozen=True)
class _Limits:
    """How many queries of each kind run at once."""

    users: int
    tasks: int
    bulk: int

    @classmethod
    def of(cls, slots: int, kept: Reserved) -> _Limits:
        tasks = max(1, slots - kept.for_users)
        return cls(max(1, slots - kept.for_tasks), tasks, max(1, tasks - kept.for_new_data))

    def allow(self, kind: Kind, running: Counter[Kind]) -> bool:
        if kind == "user":
            return running["user"] < self.users
        return running["task"] + running["bulk"] < self.tasks and (kind == "task" or running["bulk"] < self.bulk)


@dataclass(frozen=True, eq=False)
class _Waiter:
    kind: Kind
    org_id: UUID | None
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Slots:
    """Belongs to one event loop.

    A slot goes to the tier whose turn it is, of that to the organisation that has the fewest, and within that to the
    first that waits, within the limit of each kind.
    """

    def __init__(
        self,
        running: int,
        waiting: int,
        seconds: float,
        *,
        kept: Reserved | None = None,
        per_org: int | None = None,
    ) -> None:
        """`waiting`: of one kind and organisation. `per_org`: how many of one organisation run at once."""
        kept = kept or Reserved()
        self._all, self._limits = running, _Limits.of(running, kept)
        self._per_org = running if per_org is None else min(per_org, running)
        self._org_limits = _Limits.of(self._per_org, kept)
        self._shares = TierShares(self._limits.tasks, kept.normal_share, kept.for_new_data)
        self._room = waiting
        self._seconds = seconds
        self._running: Counter[Kind] = Counter()
        self._by_org: defaultdict[UUID | None, Counter[Kind]] = defaultdict(Counter)
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
        self._by_org[org_id][kind] -= 1
        if not self._by_org[org_id].total():
            del self._by_org[org_id]
        # Several may begin: one that waited for a place of its kind, another for one of its organisation.
        while (following := self._next()) is not None:
            self._waiters.remove(following)
            self._give(following.kind, following.org_id)
            following.turn.set_result(None)

    def _next(self) -> _Waiter | None:
        waiting = [waiter for waiter in self._waiters if not waiter.turn.done()]  # others have just given up
        free = [waiter for waiter in waiting if self._is_free(waiter.kind, waiter.org_id)]
        if not free:
            return None
        wanted = self._shares.want(1, self._running["bulk"])
        for tier, _ in wanted:
            of_tier = [waiter for waiter in free if (waiter.kind == "bulk") == (tier is Priority.BULK)]
            if of_tier:
                self._shares.took(wanted, int(tier is Priority.NORMAL), int(tier is Priority.BULK))
                return min(of_tier, key=lambda waiter: self._running_of(waiter.org_id))  # of equals, the first
        return None

    def _give(self, kind: Kind, org_id: UUID | None) -> None:
        self._running[kind] += 1
        self._by_org[org_id][kind] += 1

    def _is_free(self, kind: Kind, org_id: UUID | None) -> bool:
        if self.running >= self._all or self._running_of(org_id) >= self._per_org:
            return False
        of_org = self._by_org.get(org_id, Counter())
        return self._limits.allow(kind, self._running) and self._org_limits.allow(kind, of_org)

    def _running_of(self, org_id: UUID | None) -> int:
        return self._by_org[org_id].total() if org_id in self._by_org else 0


def _busy() -> Busy:
    return Busy("as many queries run and wait as can be served", hint="retry in a moment")
