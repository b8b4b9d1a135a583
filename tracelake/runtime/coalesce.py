"""Batches concurrent calls, without delaying any to wait for others.

The first call runs at once; those that arrive while it runs are collected and run together when it is done. So an idle
process answers as quickly as ever, and a busy one pays one round trip and one commit for many. A batch that takes long
(it waits for a lock, say) delays the others for `slow_seconds` at most: then the next one starts too.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Generic, TypeVar

from tracelake.runtime.metrics import Metrics
from tracelake.runtime.tracing import batch_span, current_span

Q = TypeVar("Q")
A = TypeVar("A")

SLOW_SECONDS: Final = 0.05
"""Many times what a batch takes. Two at a time would each be half as large, and cost as much."""


class Coalesced(Generic[Q, A]):
    """`run` answers a batch: an answer or an exception for each call, in order. Calls of one key never share one."""

    def __init__(
        self,
        run: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]],
        *,
        key: Callable[[Q], Hashable],
        verb: str | None = None,
        metrics: Metrics | None = None,
        at_once: int = 4,
        most: int = 200,
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        self._run = run
        self._key = key
        self._most = most
        self._free = at_once
        self._verb = verb
        self._slow_seconds = slow_seconds
        self._sizes = metrics.batch_size.labels(verb) if metrics else None
        # With a verb, a batch has a span of its own and belongs to no caller: its log lines must not name the one that
        # happened to start it. Without, it runs in the context of that caller.
        self._context = contextvars.copy_context() if verb else None
        self._slow_after = 0.0
        self._waiting: list[tuple[Q, asyncio.Future[A], Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, call: Q) -> A:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer, current_span()))
        self._start()
        return await answer

    async def together(self, calls: Iterable[Q]) -> list[A]:
        """The answers to several calls, in order; raises the first refusal among them."""
        return [_raised(answer) for answer in await self.settled(calls)]

    async def settled(self, calls: Iterable[Q]) -> list[A | BaseException]:
        """The answers to several calls, or why each was refused, in order."""
        loop = asyncio.get_running_loop()
        waiting: list[tuple[Q, asyncio.Future[A], Any]] = [
            (call, loop.create_future(), current_span()) for call in calls
        ]
        self._waiting += waiting
        self._start()
        try:
            await asyncio.wait([answer for _, answer, _ in waiting])
        except asyncio.CancelledError:
            for _, answer, _ in waiting:
                answer.cancel()
            raise
        return [answer.exception() or answer.result() for _, answer, _ in waiting]

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        while self._free and self._waiting:
            if self._tasks and loop.time() < self._slow_after:
                return  # the batch that runs calls this again when it is done, or when it has become slow
            batch = self._take()
            if not batch:
                return
            self._free -= 1
            self._slow_after = loop.time() + self._slow_seconds
            task = asyncio.create_task(self._run_batch(batch), context=self._context and self._context.copy())
            alarm = loop.call_later(self._slow_seconds, self._start)
            self._tasks.add(task)
            task.add_done_callback(partial(self._end, alarm))

    def _end(self, alarm: asyncio.TimerHandle, task: asyncio.Task[None]) -> None:
        alarm.cancel()
        self._tasks.discard(task)
        if not task.cancelled():  # else the whole loop is being ended
            self._start()

    def _take(self) -> list[tuple[Q, asyncio.Future[A], Any]]:
        """As many as may run together; calls whose caller has gone are dropped."""
        batch: dict[Hashable, tuple[Q, asyncio.Future[A], Any]] = {}
        left = []
        for waiting in self._waiting:
            if waiting[1].done():  # its caller has gone, perhaps with the whole loop: no batch may be started for it
                continue
            key = self._key(waiting[0])
            if key in batch or len(batch) >= self._most:
                left.append(waiting)
            else:
                batch[key] = waiting
        self._waiting = left
        return list(batch.values())

    async def _run_batch(self, batch: list[tuple[Q, asyncio.Future[A], Any]]) -> None:
        if self._sizes is not None:
            self._sizes.observe(len(batch))
        try:
            with self._span(batch):
                answers: Sequence[A | Exception] = await self._run([call for call, _, _ in batch])
        except Exception as wrong:  # noqa: BLE001 - every caller is answered with it
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

    def _span(self, batch: list[tuple[Q, asyncio.Future[A], Any]]) -> AbstractContextManager[Any]:
        if self._verb is None:
            return nullcontext()
        return batch_span(self._verb, [caller for _, _, caller in batch], size=len(batch))


def _raised(answer: A | BaseException) -> A:
    if isinstance(answer, BaseException):
        raise answer
    return answer
