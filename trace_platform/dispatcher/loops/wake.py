"""Wake-ups that a completion made go out at once, beside the drain and whatever it is at.

They are marked as kept a moment later, many in one statement: until then nobody waits for it, least of all the worker
that claims the task meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Final

from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.handed import WakeUp
from trace_platform.dispatcher.keep_promises import Keeper
from trace_platform.dispatcher.loops.drain_outbox import both

MARK_SECONDS: Final = 0.02
"""So long marks are collected: longer than the way from a wake-up to its claim, far shorter than anybody misses one."""


class Wake:
    def __init__(self, control: Control) -> None:
        self._control = control
        self._keeper = Keeper(control)
        self._kept: list[int] = []
        self._mark_at = 0.0

    async def once(self) -> int:
        handed = self._control.handed.take() if self._control.handed else []
        promises = [(one, self._keeper.wake_up(one)) for one in handed]
        self._leave([one for one, promise in promises if promise.queue is None])
        kept, _ = await both(self._keeper.publish([promise for _, promise in promises]), self._mark())
        if kept and not self._kept:
            self._mark_at = _now() + MARK_SECONDS
        self._kept += kept
        return len(handed)

    async def next_due(self) -> float | None:
        return max(self._mark_at - _now(), 0.001) if self._kept else None

    def _leave(self, wake_ups: list[WakeUp]) -> None:
        """What needs more than a message is for the drain, where it holds up no messages."""
        if wake_ups and self._control.handed is not None:
            self._control.handed.put_aside(wake_ups)
            self._control.owed.wake()

    async def _mark(self) -> None:
        if self._kept and _now() >= self._mark_at:
            kept, self._kept = self._kept, []
            await self._keeper.mark(kept)


def _now() -> float:
    return asyncio.get_running_loop().time()
