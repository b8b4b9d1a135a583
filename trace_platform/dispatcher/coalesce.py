"""Concurrent calls of one verb become one statement, without waiting for company.

The first call runs at once; those that come while it runs are collected and run together when it is done. So an idle
Dispatcher answers as quickly as ever, and a busy one pays one round trip and one commit for many.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from trace_platform.observe.metrics import Metrics
from trace_platform.observe.tracing import batch_span, here

Q = TypeVar("Q")
A = TypeVar("A")


class Coalesced(Generic[Q, A]):
    """`run` answers a batch: an answer or an exception for each question, in order."""

    def __init__(
        self,
        run: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]],
        *,
        key: Callable[[Q], Hashable],
        verb: str = "batch",
        metrics: Metrics | None = None,
        at_once: int = 2,
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
        self._waiting: list[tuple[Q, asyncio.Future[A], Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, question: Q) -> A:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer, here()))
        self._go()
        return await answer

    def _go(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            task = asyncio.create_task(self._one_batch(self._take()), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _take(self) -> list[tuple[Q, asyncio.Future[A], Any]]:
        """As many as may go together: two questions about one thing never do."""
        batch: dict[Hashable, tuple[Q, asyncio.Future[A], Any]] = {}
        left = []
        for waiting in self._waiting:
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
        self._go()
