"""Concurrent calls of one verb become one statement, without waiting for company.

The first call runs at once; those that come while it runs are collected and run together when it is done. So an idle
Dispatcher answers as quickly as ever, and a busy one pays one round trip and one commit for many. A batch that takes
long (it waits for a lock, say) does not hold up the others for longer than `SLOW_SECONDS`: then the next one goes too.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from tracelake.runtime.metrics import Metrics
from tracelake.runtime.tracing import batch_span, current_span

Q = TypeVar("Q")
A = TypeVar("A")

SLOW_SECONDS: Final = 0.05
"""How long a batch is waited for: many times what one takes. Two at a time would each be half as large, and as dear."""


class Coalesced(Generic[Q, A]):
    """`run` answers a batch: an answer or an exception for each question, in order."""

    def __init__(
        self,
        run: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]],
        *,
        key: Callable[[Q], Hashable],
        verb: str = "batch",
        metrics: Metrics | None = None,
        at_once: int = 4,
        most: int = 200,
    ) -> None:
        self._run = run
        self._key = key
        self._most = most
        self._free = at_once
        self._verb = verb
        self._sizes = (metrics or Metrics()).batch_size.labels(verb)
        # A batch is nobody's: what it says and traces must not be said of the caller who happened to start it.
        self._context = contextvars.copy_context()
        self._slow_after = 0.0
        self._waiting: list[tuple[Q, asyncio.Future[A], Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, question: Q) -> A:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer, current_span()))
        self._go()
        return await answer

    async def together(self, questions: Iterable[Q]) -> list[A]:
        """Several at once, answered in order; the first refusal among them is raised."""
        return [_raised(a) for a in await self.settled(questions)]

    async def settled(self, questions: Iterable[Q]) -> list[A | BaseException]:
        """Several at once: what each was answered, or why it was refused, in order."""
        loop = asyncio.get_running_loop()
        asked: list[tuple[Q, asyncio.Future[A], Any]] = [
            (item, loop.create_future(), current_span()) for item in questions
        ]
        self._waiting += asked
        self._go()
        try:
            await asyncio.wait([answer for _, answer, _ in asked])
        except asyncio.CancelledError:
            for _, answer, _ in asked:
                answer.cancel()
            raise
        return [answer.exception() or answer.result() for _, answer, _ in asked]

    def _go(self) -> None:
        loop = asyncio.get_running_loop()
        while self._free and self._waiting:
            if self._tasks and loop.time() < self._slow_after:
                return  # the batch that runs calls again when it is done, or when it has become slow
            batch = self._take()
            if not batch:
                return
            self._free -= 1
            self._slow_after = loop.time() + SLOW_SECONDS
            task = asyncio.create_task(self._one_batch(batch), context=self._context.copy())
            alarm = loop.call_later(SLOW_SECONDS, self._go)
            self._tasks.add(task)
            task.add_done_callback(partial(self._over, alarm))

    def _over(self, alarm: asyncio.TimerHandle, task: asyncio.Task[None]) -> None:
        alarm.cancel()
        self._tasks.discard(task)
        if not task.cancelled():  # by whom all of it is being ended
            self._go()

    def _take(self) -> list[tuple[Q, asyncio.Future[A], Any]]:
        """As many as may go together: two questions about one thing never do. Nobody's question is asked no more."""
        batch: dict[Hashable, tuple[Q, asyncio.Future[A], Any]] = {}
        left = []
        for waiting in self._waiting:
            if waiting[1].done():  # its caller has gone, perhaps with the whole loop: no batch may be begun for it
                continue
            key = self._key(waiting[0])
            if key in batch or len(batch) >= self._most:
                left.append(waiting)
            else:
                batch[key] = waiting
        self._waiting = left
        return list(batch.values())

    async def _one_batch(self, batch: list[tuple[Q, asyncio.Future[A], Any]]) -> None:
        self._sizes.observe(len(batch))
        try:
            with batch_span(self._verb, [caller for _, _, caller in batch], size=len(batch)):
                answers: Sequence[A | Exception] = await self._run([question for question, _, _ in batch])
        except Exception as wrong:  # noqa: BLE001 - every caller hears of it
            answers = [wrong] * len(batch)
        finally:
            self._free += 1
        for (_, future, _), answer in zip(batch, answers, strict=True):
            if future.done():  # the caller has gone
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def _raised(answer: A | BaseException) -> A:
    if isinstance(answer, BaseException):
        raise answer
    return answer
