"""An event loop in a thread of its own, for tests whose calls come from the main thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.support.waiting import SECONDS

T = TypeVar("T")


class LoopThread:
    """Ends as `asyncio.run` does: what still runs is canceled, and connections are closed."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)  # one that is not closed does not keep pytest
        self._thread.start()
        self._started.wait()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._until_closed())

    async def _until_closed(self) -> None:
        self._closed = asyncio.Event()
        self._started.set()
        await self._closed.wait()
