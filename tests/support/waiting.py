"""Waits for a condition: the one way to wait in tests. `wait_until` blocks its thread, `until` is for coroutines.

The deadline only ends a test that would never end, before pytest does it without saying what it waited for: how long
something takes depends on the machine.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast, overload

SECONDS: Final = 600.0
"""Less than `timeout` of pytest in `pyproject.toml`. Tests take their deadlines from here, however short the wait is on
an idle machine."""
EVERY_SECONDS: Final = 0.02
EVERY_SECONDS_BLOCKING: Final = 0.05

Found = TypeVar("Found")
Ignored = tuple[type[BaseException], ...]


def wait_until(
    condition: Callable[[], Found | None],
    what: str,
    *,
    seconds: float = SECONDS,
    every: float = EVERY_SECONDS_BLOCKING,
    ignoring: Ignored = (),
) -> Found:
    """Returns the first true value of `condition`. `ignoring`: errors of it that only mean "not yet"."""
    deadline, last = time.monotonic() + seconds, cast("Any", None)
    while True:
        try:
            last = condition()
        except ignoring as error:
            last = error
        else:
            if last:
                return last
        if time.monotonic() > deadline:
            raise TimeoutError(_in_vain(what, seconds, last))
        time.sleep(every)


@overload
async def until(
    condition: Callable[[], Awaitable[Found | None]],
    what: str,
    *,
    seconds: float = ...,
    every: float = ...,
    ignoring: Ignored = ...,
) -> Found: ...
@overload
async def until(
    condition: Callable[[], Found | None],
    what: str,
    *,
    seconds: float = ...,
    every: float = ...,
    ignoring: Ignored = ...,
) -> Found: ...
async def until(
    condition: Callable[[], Any],
    what: str,
    *,
    seconds: float = SECONDS,
    every: float = EVERY_SECONDS,
    ignoring: Ignored = (),
) -> Any:
    """The same without blocking the event loop; `condition` is a function or a coroutine function."""
    last: Any = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    last = condition()
                    last = await last if inspect.isawaitable(last) else last
                except ignoring as error:
                    last = error
                else:
                    if last:
                        return last
                await asyncio.sleep(every)
    except TimeoutError as late:
        raise TimeoutError(_in_vain(what, seconds, last)) from late


def _in_vain(what: str, seconds: float, last: object) -> str:
    return f"waited {seconds:.0f} s in vain until {what}; the condition was last {last!r}"
