"""Finds code of ours that waits for a second connection while it holds one.

As many callers as there are connections, each holding one and waiting for another, wait for each other. So every test
fails in which one of our modules acquires a connection while the same task holds one that our modules acquired. What
tests acquire themselves does not count, nor what a task does that was only started meanwhile: nobody waits for it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import tracelake
from tracelake.store.pool import Acquiring, BoundedPool

OURS = str(Path(tracelake.__file__).parent)
STORE = str(Path(OURS) / "store" / "pool.py")

_holder: ContextVar[tuple[str, asyncio.Task[Any] | None] | None] = ContextVar("holder", default=None)


class SecondConnection(AssertionError):
    """Names both places."""


class _Watched(Acquiring):
    __slots__ = ("_before", "_by")

    def __init__(self, pool: BoundedPool, seconds: float, by: str | None) -> None:
        super().__init__(pool, seconds)
        self._by = by
        self._before: Any = None

    async def __aenter__(self) -> Any:
        connection = await super().__aenter__()
        self._before = _holder.get()
        _holder.set((self._by, asyncio.current_task()) if self._by else self._before)
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        _holder.set(self._before)
        await super().__aexit__(kind, wrong, trace)


@contextmanager
def one_connection_each() -> Iterator[None]:
    plain = BoundedPool.acquire

    def acquire(self: BoundedPool, *, timeout: float | None = None) -> Acquiring:
        by = _our_place(sys._getframe(1))
        if by is not None and (holder := _holder.get()) is not None and holder[1] is asyncio.current_task():
            raise SecondConnection(f"{by} acquires a connection while one is held that {holder[0]} acquired")
        return _Watched(self, plain(self, timeout=timeout)._seconds, by)

    BoundedPool.acquire = acquire  # type: ignore[method-assign]
    try:
        yield
    finally:
        BoundedPool.acquire = plain  # type: ignore[method-assign]


def _our_place(frame: FrameType | None) -> str | None:
    """The innermost frame that is neither asyncpg's nor the pool's, if it is ours."""
    while frame is not None and ("asyncpg" in frame.f_code.co_filename or frame.f_code.co_filename == STORE):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(OURS):
        return None
    return f"{Path(frame.f_code.co_filename).relative_to(Path(OURS).parent)}:{frame.f_lineno}"
