"""How a process waits for work that is due later, or earlier if something changes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

from tracelake.wire.message import Message

CHANGES_SECONDS: Final = 20.0
"""How long a process waits in one call: shorter than a proxy keeps a silent connection."""


class ChangesAnswer(Message, frozen=True):
    """To a process that waits."""

    mark: str
    """Where the next call continues."""
    changed: bool
    """Something has changed: ask for work now."""


async def wait_until_due(
    next_in_seconds: float | None, mark: str, changes: Callable[[str, float], Awaitable[ChangesAnswer]]
) -> None:
    """Until work is due (None: no work is known), or something has changed since the mark: then other work may be."""
    clock = asyncio.get_running_loop().time
    due = clock() + (inf if next_in_seconds is None else next_in_seconds)
    while (left := due - clock()) > 0:
        change = await changes(mark, min(left, CHANGES_SECONDS))
        if change.changed or _writer(change.mark) != _writer(mark):
            return


def _writer(mark: str) -> str:
    """The Dispatcher that gave the mark: another one does not know what changed since."""
    return mark.partition("-")[0]
