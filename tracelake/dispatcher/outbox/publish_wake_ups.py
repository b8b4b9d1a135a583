"""Wake-ups that a completion made go out at once, beside the drain and whatever it is at.

They are marked as kept a moment later, many in one statement: until then nobody waits for it, least of all the worker
that claims the task meanwhile. Whatever goes wrong here, they stand in the outbox, and the drain finds them when their
time has run out.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from typing import Final

import structlog

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.outbox.dispatch import EntryDispatcher
from tracelake.dispatcher.outbox.local_wake_ups import WakeUp
from tracelake.errors import Unavailable
from tracelake.store.db import OUTAGES

log = structlog.get_logger()

MARK_SECONDS: Final = 0.02
"""So long marks are collected: longer than the way from a wake-up to its claim, far shorter than anybody misses one."""


class Wake:
    """Called by `LocalWakeUps.give`, not waited for: the next turn of the event loop sends the message."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._keeper = EntryDispatcher(control)
        self._publishing: asyncio.Task[None] | None = None
        self._marking: asyncio.Task[None] | None = None
        self._kept: list[int] = []
        self._context = contextvars.copy_context()  # what is said here is not said of the caller

    def start(self) -> None:
        if self._control.wake_ups is not None:
            self._control.wake_ups.tell(self._go)

    async def stop(self) -> None:
        """What has gone out is marked; what has not is left to others."""
        if self._control.wake_ups is not None:
            self._control.wake_ups.tell(None)
        while task := self._publishing or self._marking:  # the first begins the second
            await asyncio.wait({task})

    def _go(self) -> None:
        if self._publishing is None:
            self._publishing = asyncio.create_task(self._publish_all(), context=self._context.copy())

    async def _publish_all(self) -> None:
        """One message for many while it is busy: what is given meanwhile goes out together."""
        try:
            while self._control.wake_ups and (handed := self._control.wake_ups.take()):
                await self.publish(handed)
        except (*OUTAGES, Unavailable) as away:
            log.warning("wake-ups are left to the drain", because=str(away) or type(away).__name__)
        except Exception:
            log.exception("wake-ups are left to the drain")
        finally:
            self._publishing = None

    async def publish(self, handed: Sequence[WakeUp]) -> None:
        entries = [(up, self._keeper.wake_up(up)) for up in handed]
        self._leave([item for item, entry in entries if entry.queue is None])
        self._kept += await self._keeper.publish([entry for _, entry in entries])
        if self._kept and self._marking is None:
            self._marking = asyncio.create_task(self._mark_soon(), context=self._context.copy())

    def _leave(self, wake_ups: Sequence[WakeUp]) -> None:
        """What needs more than a message is for the drain, where it holds up no messages."""
        if wake_ups and self._control.wake_ups is not None:
            self._control.wake_ups.put_aside(wake_ups)
            self._control.outbox_signal.wake()

    async def _mark_soon(self) -> None:
        try:
            while self._kept:
                await asyncio.sleep(MARK_SECONDS)
                kept, self._kept = self._kept, []
                await self._keeper.mark(kept)
        except OUTAGES as away:
            log.warning("wake-ups will go out twice", because=str(away) or type(away).__name__)
        except Exception:
            log.exception("wake-ups will go out twice")
        finally:
            self._marking = None
