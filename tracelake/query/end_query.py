"""Ends a query that is over its time or whose caller has left: by interrupts or, where these fail, by ending its JVM.

A task in nested loops, or in a generator that makes many rows of one, never checks for an interrupt: then its JVM is
ended, and the queries beside it are run once more on the next JVM (`engine.py`).

On a machine short of cores a task takes longer to end. So the limit counts not the time that passed, but the share of
it for which the JVM's threads had the cores that they wanted (`thread_times.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tracelake.query.spark.sessions import Sessions
from tracelake.spark.thread_times import ThreadTimes, share_of_cores

AGAIN_SECONDS: Final = 0.1
"""Between interrupts: a job that starts just after one is not ended by it."""
PLANNING_SECONDS: Final = 6.5
"""The JVM is not ended for a query without running tasks that began less than this ago: it is most likely being
planned, which cannot be interrupted, and the other queries would lose their JVM."""
LONGEST_FACTOR: Final = 10.0
"""On a slow machine a query gets at most this many times the time that it gets on an idle one."""
JVM_SECONDS: Final = 0.5
"""A JVM that needs longer to report whether a query runs counts as one in which it does."""


class Query(Protocol):
    """A query that is to end."""

    @property
    def tag(self) -> str: ...

    @property
    def began(self) -> float: ...

    @property
    def seconds(self) -> float:
        """How long it may run."""
        ...


@dataclass(frozen=True)
class EndQuery:
    give_up: Callable[[Sessions], Any]
    """Ends the JVM of these sessions."""
    stuck_seconds: float
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(16, "end-query"))
    """Separate threads: a JVM that does not answer must not block those that write answers."""

    async def __call__(self, sessions: Sessions, query: Query, thread: asyncio.Future[Any]) -> None:
        """Return when the query's thread has ended and no core works for it."""
        request: asyncio.Future[bool] | None = None
        before = await self._thread_times(sessions)
        while not thread.done() or _may_leave_tasks(thread):
            if request is None or request.done():
                request = self._interrupt(sessions, query.tag)
            runs = await _answer(request)
            if thread.done() and not runs:
                break
            await (asyncio.sleep(AGAIN_SECONDS) if thread.done() else asyncio.wait([thread], timeout=AGAIN_SECONDS))
            share = share_of_cores(before, await self._thread_times(sessions))
            if is_stuck(query, time.monotonic(), self.stuck_seconds, share, runs=runs):
                await self.give_up(sessions)
        if not thread.cancelled():
            thread.exception()  # the caller may be gone, so the exception is retrieved here

    def _thread_times(self, sessions: Sessions) -> asyncio.Future[dict[int, ThreadTimes]]:
        return asyncio.get_running_loop().run_in_executor(self.threads, sessions.thread_times)

    def _interrupt(self, sessions: Sessions, tag: str) -> asyncio.Future[bool]:
        def call() -> bool:
            runs = sessions.runs(tag)
            sessions.interrupt(tag)
            return runs

        return asyncio.get_running_loop().run_in_executor(self.threads, call)

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)


def is_stuck(query: Query, now: float, stuck_seconds: float, share: float, *, runs: bool) -> bool:
    """Whether a query is so far over its time that its JVM is ended. A caller who left early does not change that.

    `share`: the part of the wanted cores that the JVM's threads had since the query was to end.
    """
    ran = now - query.began
    slower = min(1 / share, LONGEST_FACTOR) if share > 0 else LONGEST_FACTOR
    return ran >= query.seconds + slower * stuck_seconds and (runs or ran >= slower * PLANNING_SECONDS)


def _may_leave_tasks(thread: asyncio.Future[Any]) -> bool:
    """A query that returned rows leaves no tasks; one that was ended, or failed, may leave tasks in their loops."""
    return not thread.cancelled() and thread.exception() is not None


async def _answer(request: asyncio.Future[bool]) -> bool:
    done, _ = await asyncio.wait({request}, timeout=JVM_SECONDS)
    return request.result() if done else True
