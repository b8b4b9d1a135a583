"""Ends a query whose time is over or whose caller is gone: by interrupts, and by the end of its JVM if none reaches it.

A task in nested loops, or in a generator that makes many rows of one, never looks whether it should end. It is the JVM
then that is ended. Queries beside it are run once more on the next one (`engine.py`).

On a machine that is short of cores, a task that would end takes longer to. So what counts is not the time that passed,
but the part of it for which the JVM's threads had the cores that they wanted (`thread_times.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tracelake.query.sessions import Sessions
from tracelake.spark.thread_times import ThreadTimes, share_of_cores

AGAIN_SECONDS: Final = 0.1
"""Between interrupts: a job that begins just after one is not ended by it."""
PLANNING_SECONDS: Final = 6.5
"""Spark is not ended for a query without running tasks that began less than this ago: it is most likely being planned,
which nothing interrupts, and short limits would cost the others their Spark."""
LONGEST_FACTOR: Final = 10.0
"""However slow the machine is, a query is not waited for longer than so many times what it is on an idle one."""
JVM_SECONDS: Final = 0.5
"""A JVM that takes longer to answer whether something runs in it counts as one in which it does."""


class Query(Protocol):
    """One that is to end."""

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
    """Of its own: a JVM that does not answer must not take the threads by which answers are written."""

    async def __call__(self, sessions: Sessions, query: Query, thread: asyncio.Future[Any]) -> None:
        """Returns when its thread has ended and no core runs for it."""
        asked: asyncio.Future[bool] | None = None
        before = await self._thread_times(sessions)
        while not thread.done() or _may_leave_tasks(thread):
            if asked is None or asked.done():
                asked = self._interrupted(sessions, query.tag)
            runs = await _answer(asked)
            if thread.done() and not runs:
                break
            await (asyncio.sleep(AGAIN_SECONDS) if thread.done() else asyncio.wait([thread], timeout=AGAIN_SECONDS))
            share = share_of_cores(before, await self._thread_times(sessions))
            if is_stuck(query, time.monotonic(), self.stuck_seconds, share, runs=runs):
                await self.give_up(sessions)
        if not thread.cancelled():
            thread.exception()  # whoever asked may be gone, and then nobody else takes note of it

    def _thread_times(self, sessions: Sessions) -> asyncio.Future[dict[int, ThreadTimes]]:
        return asyncio.get_running_loop().run_in_executor(self.threads, sessions.thread_times)

    def _interrupted(self, sessions: Sessions, tag: str) -> asyncio.Future[bool]:
        def call() -> bool:
            runs = sessions.runs(tag)
            sessions.interrupt(tag)
            return runs

        return asyncio.get_running_loop().run_in_executor(self.threads, call)

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)


def is_stuck(query: Query, now: float, stuck_seconds: float, share: float, *, runs: bool) -> bool:
    """Over its time by so much that its JVM is ended. A caller who left early does not shorten that.

    `share`: of the cores that the JVM's threads wanted since it is to end.
    """
    ran = now - query.began
    slower = min(1 / share, LONGEST_FACTOR) if share > 0 else LONGEST_FACTOR
    return ran >= query.seconds + slower * stuck_seconds and (runs or ran >= slower * PLANNING_SECONDS)


def _may_leave_tasks(thread: asyncio.Future[Any]) -> bool:
    """Rows that came leave nothing behind. A query that was ended, or failed, may leave tasks in their loops."""
    return not thread.cancelled() and thread.exception() is not None


async def _answer(asked: asyncio.Future[bool]) -> bool:
    done, _ = await asyncio.wait({asked}, timeout=JVM_SECONDS)
    return asked.result() if done else True
