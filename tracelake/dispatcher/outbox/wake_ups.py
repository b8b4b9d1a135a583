"""Publishes wake-ups of tasks that this replica has just created, without waiting for the drain.

They are in the outbox as taken by this replica, and are marked as done a moment later, many in one statement. Whatever
goes wrong here, or if the process dies, the drain takes them again when their time has run out.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from typing import Final

import structlog

from tracelake.dispatcher.outbox.dispatch import EntryDispatcher, WakeUp
from tracelake.dispatcher.signal import Signal
from tracelake.errors import Unavailable
from tracelake.store.db import OUTAGES

log = structlog.get_logger()

MARK_SECONDS: Final = 0.02
"""How long marks are collected: longer than it takes from a wake-up to its claim."""


class WakeUps:
    """Given after their commit; published once started, and else kept for the drain."""

    def __init__(self) -> None:
        self._publisher: tuple[EntryDispatcher, Signal] | None = None
        self._waiting: list[WakeUp] = []
        self._for_drain: list[WakeUp] = []
        self._published: list[int] = []
        self._publishing: asyncio.Task[None] | None = None
        self._marking: asyncio.Task[None] | None = None
        self._context = contextvars.Context()

    def start(self, dispatcher: EntryDispatcher, drain: Signal) -> None:
        self._publisher = dispatcher, drain
        self._context = contextvars.copy_context()  # its log lines are not about the caller that gave the wake-ups

    async def stop(self) -> None:
        """Marks what has been published; the rest is left to other replicas."""
        self._publisher = None
        while task := self._publishing or self._marking:  # the first begins the second
            await asyncio.wait({task})

    def give(self, wake_ups: Sequence[WakeUp]) -> None:
        """Not waited for: the next turn of the event loop publishes them."""
        self._waiting += wake_ups
        if wake_ups and self._publisher is not None and self._publishing is None:
            self._publishing = asyncio.create_task(self._publish_all(*self._publisher), context=self._context.copy())

    def take_all(self) -> list[WakeUp]:
        """For the drain: those that need more than a message, and all where nothing was started."""
        taken, self._for_drain, self._waiting = [*self._for_drain, *self._waiting], [], []
        return taken

    async def _publish_all(self, dispatcher: EntryDispatcher, drain: Signal) -> None:
        """Those that are given while others are being published go out together."""
        try:
            while self._waiting:
                wake_ups, self._waiting = self._waiting, []
                await self._publish(dispatcher, drain, wake_ups)
        except (*OUTAGES, Unavailable) as away:
            log.warning("wake-ups are left to the drain", because=str(away) or type(away).__name__)
        except Exception:
            log.exception("wake-ups are left to the drain")
        finally:
            self._publishing = None

    async def _publish(self, dispatcher: EntryDispatcher, drain: Signal, wake_ups: Sequence[WakeUp]) -> None:
        entries = [(wake_up, dispatcher.entry_of(wake_up)) for wake_up in wake_ups]
        if others := [wake_up for wake_up, entry in entries if entry.queue is None]:
            self._for_drain += others
            drain.wake()
        self._published += await dispatcher.publish([entry for _, entry in entries])
        if self._published and self._marking is None:
            self._marking = asyncio.create_task(self._mark_soon(dispatcher), context=self._context.copy())

    async def _mark_soon(self, dispatcher: EntryDispatcher) -> None:
        try:
            while self._published:
                await asyncio.sleep(MARK_SECONDS)
                entries, self._published = self._published, []
                await dispatcher.mark(entries)
        except OUTAGES as away:
            log.warning("wake-ups will go out twice", because=str(away) or type(away).__name__)
        except Exception:
            log.exception("wake-ups will go out twice")
        finally:
            self._marking = None
