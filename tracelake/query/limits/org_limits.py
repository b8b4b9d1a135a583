"""Limits how many queries of one organisation run and wait at once, whichever engine runs them.

In front of the engines, whose own limits are for the machine (`slots.py`). The limits come with the lookup of each
query's tables, so a change counts from the next query on; a limit that is raised also lets those begin that wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from tracelake.errors import Busy, LimitReached
from tracelake.query.checked_query import CheckedQuery
from tracelake.query.engine import InProgress, QueryEngine, QueryResult, query_timeout
from tracelake.settings import QuerySettings
from tracelake.wire.internal.queries import QueryLimits


class OrgTurns:
    """Belongs to one event loop."""

    def __init__(self, waiting: int, seconds: float) -> None:
        """`waiting`: how many may wait where the organisation has no limit for it; `seconds`: for how long."""
        self._most_waiting, self._seconds = waiting, seconds
        self._running: Counter[UUID] = Counter()
        self._waiting: defaultdict[UUID, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._most: dict[UUID, int | None] = {}
        """As the last query of each brought it."""

    @asynccontextmanager
    async def turn(self, org_id: UUID, limits: QueryLimits) -> AsyncIterator[None]:
        self._most[org_id] = limits.queries
        self._begin_waiting(org_id)
        if self._is_free(org_id):
            self._running[org_id] += 1
        else:
            await self._wait(org_id, limits)
        try:
            yield
        finally:
            self._leave(org_id)

    async def _wait(self, org_id: UUID, limits: QueryLimits) -> None:
        waiting = self._waiting[org_id]
        if len(waiting) >= (limits.queries_waiting or self._most_waiting):
            raise _busy(limits, len(waiting))
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            async with asyncio.timeout(self._seconds):
                await turn
        except BaseException as given_up:
            if turn.done() and not turn.cancelled():  # it began at the same moment
                self._leave(org_id)
            elif turn in waiting:
                waiting.remove(turn)
            if isinstance(given_up, TimeoutError):
                raise _busy(limits, len(waiting)) from None
            raise

    def _leave(self, org_id: UUID) -> None:
        self._running[org_id] -= 1
        self._begin_waiting(org_id)
        if not self._running[org_id] and not self._waiting[org_id]:
            del self._running[org_id], self._waiting[org_id], self._most[org_id]

    def _begin_waiting(self, org_id: UUID) -> None:
        while self._waiting[org_id] and self._is_free(org_id):
            turn = self._waiting[org_id].popleft()
            if not turn.done():  # else its caller has just given up
                self._running[org_id] += 1
                turn.set_result(None)

    def _is_free(self, org_id: UUID) -> bool:
        most = self._most[org_id]
        return most is None or self._running[org_id] < most


class LimitedEngine:
    """An engine behind the limits of organisations. Several may share the turns."""

    def __init__(self, engine: QueryEngine, turns: OrgTurns) -> None:
        self._engine, self._turns = engine, turns

    @classmethod
    def of(cls, engine: QueryEngine, settings: QuerySettings) -> LimitedEngine:
        return cls(engine, OrgTurns(settings.waiting, settings.wait_seconds))

    def beside(self, engine: QueryEngine) -> LimitedEngine:
        """Another engine with the same turns."""
        return LimitedEngine(engine, self._turns)

    async def run(self, query: CheckedQuery) -> QueryResult:
        org_id, limits = query.caller.org_id, query.caller.limits
        if query.export is not None and limits.storage_full:
            raise LimitReached(
                "the organisation stores as much as it may (object_bytes), so nothing is exported",
                where="/export",
                hint="`trace org usage` shows what is stored; delete what is not needed, or ask for a higher limit",
            )
        try:
            async with asyncio.timeout(query.answer_within), self._turns.turn(org_id, limits):
                return await self._engine.run(query)
        except TimeoutError:
            raise query_timeout(query) from None

    def in_progress(self, state: InProgress) -> int:
        return self._engine.in_progress(state)


def _busy(limits: QueryLimits, waiting: int) -> Busy:
    return Busy(
        f"the organisation's limit: {limits.queries} queries run (queries), and {waiting} wait",
        hint="retry in a moment; `trace org limits` of a platform admin shows and changes the limit",
    )
