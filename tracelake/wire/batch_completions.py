"""Completions that a worker has to report: one goes at once; those that come while it is on its way go together.

Nobody waits for company, and a busy worker pays for one call what it would pay for many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tracelake.wire.output_messages import CompleteAnswer, CompleteItem
from tracelake.wire.task_messages import MAX_CLAIMS

Send = Callable[[Sequence[CompleteItem]], Awaitable[Sequence[CompleteAnswer | Exception]]]
AT_ONCE: Final = 2
"""Calls on their way: while one is answered, the next is written."""
LARGE_BYTES: Final = 8 * 1024
"""A completion that has so many with its token goes by itself: as many as go together must fit into one body."""


class Completions:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: list[tuple[CompleteItem, asyncio.Future[CompleteAnswer]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def report(self, item: CompleteItem) -> CompleteAnswer:
        answer: asyncio.Future[CompleteAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        self._go()
        return await answer

    def _go(self) -> None:
        while self._waiting and len(self._calls) < AT_ONCE:
            batch, self._waiting = self._waiting[:MAX_CLAIMS], self._waiting[MAX_CLAIMS:]
            call = asyncio.create_task(self._call([hashable for hashable in batch if not hashable[1].done()]))
            self._calls.add(call)
            call.add_done_callback(self._over)

    def _over(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            self._go()

    async def _call(self, batch: Sequence[tuple[CompleteItem, asyncio.Future[CompleteAnswer]]]) -> None:
        try:
            answers = await self._send([item for item, _ in batch]) if batch else ()
        except Exception as wrong:  # noqa: BLE001 - every caller hears of it
            answers = [wrong] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
