"""Finds code of ours that waits for a second connection while it holds one.

As many callers as there are connections, each holding one and waiting for another, wait for each other. So every test
fails in which one of our modules acquires a connection while one is held that our modules acquired: by the same task,
by the task that started it, or by a caller whose batch it runs. What tests acquire themselves does not count, nor what
a task does after the connection was released that was held when it started.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import tracelake
from tracelake.runtime.coalesce import Coalesced
from tracelake.store.pool import Acquiring, BoundedPool

OURS = str(Path(tracelake.__file__).parent)
STORE = str(Path(OURS) / "store" / "pool.py")


@dataclass
class _Holder:
    place: str
    holds: bool = True


_holder: ContextVar[_Holder | None] = ContextVar("holder", default=None)
"""A task inherits it from the task that starts it."""
_callers: WeakKeyDictionary[asyncio.Future[Any], _Holder | None] = WeakKeyDictionary()
"""Of calls that wait for a batch, which runs in a context of its own."""


class SecondConnection(AssertionError):
    """Names both places."""


class _Watched(Acquiring):
    __slots__ = ("_before", "_by", "_mine")

    def __init__(self, pool: BoundedPool, seconds: float, by: str | None) -> None:
        super().__init__(pool, seconds)
        self._by = by
        self._before: _Holder | None = None
        self._mine: _Holder | None = None

    async def __aenter__(self) -> Any:
        connection = await super().__aenter__()
        self._before = _holder.get()
        if self._by:
            self._mine = _Holder(self._by)
            _holder.set(self._mine)
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mine is not None:
            self._mine.holds = False
        _holder.set(self._before)
        await super().__aexit__(kind, wrong, trace)


@contextmanager
def one_connection_each() -> Iterator[None]:
    plain, start, run_batch = BoundedPool.acquire, Coalesced._start, Coalesced._run_batch

    def acquire(self: BoundedPool, *, timeout: float | None = None) -> Acquiring:
        by, holder = _our_place(sys._getframe(1)), _holder.get()
        if by is not None and holder is not None and holder.holds:
            raise SecondConnection(f"{by} acquires a connection while one is held that {holder.place} acquired")
        return _Watched(self, plain(self, timeout=timeout)._seconds, by)

    def note_callers(self: Coalesced[Any, Any]) -> None:
        for _, answer, _ in self._waiting:
            _callers.setdefault(answer, _holder.get())
        start(self)

    async def run_for_callers(self: Coalesced[Any, Any], batch: list[Any]) -> None:
        holders = (_callers.get(answer) for _, answer, _ in batch)
        _holder.set(next((holder for holder in holders if holder is not None and holder.holds), None))
        await run_batch(self, batch)

    BoundedPool.acquire = acquire  # type: ignore[method-assign]
    Coalesced._start, Coalesced._run_batch = note_callers, run_for_callers  # type: ignore[method-assign]
    try:
        yield
    finally:
        BoundedPool.acquire = plain  # type: ignore[method-assign]
        Coalesced._start, Coalesced._run_batch = start, run_batch  # type: ignore[method-assign]


def _our_place(frame: FrameType | None) -> str | None:
    """The innermost frame that is neither asyncpg's nor the pool's, if it is ours."""
    while frame is not None and ("asyncpg" in frame.f_code.co_filename or frame.f_code.co_filename == STORE):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(OURS):
        return None
    return f"{Path(frame.f_code.co_filename).relative_to(Path(OURS).parent)}:{frame.f_lineno}"
