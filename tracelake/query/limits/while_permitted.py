"""Ends the work of a user who loses the right to it: a removed user, a revoked token, a dataset that was taken away.

Rights are checked before work begins and every few seconds while it runs. If the Dispatcher does not answer, the work
goes on until it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from tracelake.errors import Forbidden, NotFound, Unauthenticated, Unavailable

T = TypeVar("T")


async def while_permitted(
    check: Callable[[], Awaitable[object]], work: Coroutine[Any, Any, T], every_seconds: float
) -> T:
    """The result of the work. It is canceled, and Forbidden is raised, when `check` refuses."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_until_refused(check, every_seconds))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watching.result()
            raise Forbidden(
                "the right to this was taken away while it ran", hint="ask an admin of your organisation for it"
            )
        return working.result()
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.wait({working, watching})


async def _until_refused(check: Callable[[], Awaitable[object]], every_seconds: float) -> None:
    while True:
        await asyncio.sleep(every_seconds)
        with suppress(Unavailable):
            try:
                await check()
            except (Unauthenticated, Forbidden, NotFound):
                return
