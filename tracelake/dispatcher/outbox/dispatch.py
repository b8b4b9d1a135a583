"""A entry in our hands is kept: act without a transaction, then mark. Next: the queue, a function, or our own hands.

Kept twice is harmless: a claim is only given once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import msgspec

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.outbox.local_wake_ups import WakeUp
from tracelake.dispatcher.runtimes.call_functions import CallFunctions
from tracelake.dispatcher.runtimes.run_in_process import run_in_process
from tracelake.domain.task import Backoff, retry_delay
from tracelake.errors import Unavailable
from tracelake.ports import Outgoing
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

BACKOFF = Backoff(1, 300)
NOWHERE_DELAY = timedelta(minutes=1)
"""How soon to try again a task whose runtime the settings do not know: they may, after a restart."""


@dataclass(frozen=True)
class OutboxEntry:
    """A row of the outbox in our hands, and how it is kept: a message, a task run here, a function called."""

    id: int
    queue: str | None = None
    message: bytes = b""
    task_id: UUID | None = None
    function: bool = False


class EntryDispatcher:
    def __init__(self, control: Control, functions: CallFunctions | None = None) -> None:
        self._control = control
        self._functions = functions

    def wake_up(self, wake_up: WakeUp) -> OutboxEntry:
        """How a task gets to where it runs: by a message, by our own hands, by a call, or, for now, not at all."""
        told = msgspec.json.decode(wake_up.payload)
        runtime, task_id = self._control.runtimes.get(told["runtime"]), UUID(told["task_id"])
        match runtime.invoker if runtime else None:
            case "in_process":
                return OutboxEntry(wake_up.entry, task_id=task_id)
            case "function" if self._functions is not None:
                return OutboxEntry(wake_up.entry, task_id=task_id, function=True)
            case "queue" if runtime:
                return OutboxEntry(wake_up.entry, runtime.queue, msgspec.json.encode({"task_id": task_id}))
            case _:
                return OutboxEntry(wake_up.entry)

    async def keep(self, entries: Sequence[OutboxEntry]) -> None:
        called = [entry.id for entry in entries if entry.function]
        await self.mark([*await self.publish(entries), *called])
        if called and self._functions is not None:  # Queued and woken, they are found in the tasks themselves
            self._functions.signal.notify()
        nowhere = [entry.id for entry in entries if entry.queue is None and entry.task_id is None]
        if nowhere:
            error = "its runtime is not in the settings of this Dispatcher, or its invoker is not there"
            await self.put_off(nowhere, error, delay=NOWHERE_DELAY)
        await self._run_here({entry.task_id: entry.id for entry in entries if entry.task_id and not entry.function})

    async def publish(self, entries: Sequence[OutboxEntry]) -> list[int]:
        """Those that are messages; gives the ones that went out and are to be marked."""
        by_queue: dict[str, list[OutboxEntry]] = defaultdict(list)
        for entry in entries:
            if entry.queue is not None:
                by_queue[entry.queue].append(entry)
        kept = list[int]()
        for queue, group in by_queue.items():
            sent = self._control.queue.publish(queue, [Outgoing(item.message) for item in group])
            kept += await self._kept([item.id for item in group], sent)
        return kept

    async def mark(self, kept: Sequence[int]) -> None:
        if kept:
            crash_point("drain_outbox.before_mark")
            await self._control.hot.execute(queries("outbox")["mark_entries_done"], kept, self._control.replica)
            crash_point("drain_outbox.after_mark")

    async def _run_here(self, tasks: dict[UUID, int]) -> None:
        if tasks:
            await self.mark(await self._kept(list(tasks.values()), run_in_process(self._control, list(tasks))))

    async def _kept(self, entries: list[int], act: Awaitable[object]) -> list[int]:
        """All of them, or none if what they need is away."""
        try:
            crash_point("drain_outbox.before_act")
            await act
        except Unavailable as away:
            await self.put_off(entries, away.message)
            return []
        return entries

    async def put_off(
        self, entries: Sequence[int], error: str, *, final: bool = False, delay: timedelta | None = None
    ) -> None:
        """What they need is away: again soon, for as long as it takes. Or, `final`: given up, for people."""
        delay = delay or timedelta(seconds=retry_delay(1, BACKOFF, 0.5))
        await self._control.hot.execute(
            queries("outbox")["postpone_entries"],
            entries,
            self._control.replica,
            [delay] * len(entries),
            [error] * len(entries),
            [final] * len(entries),
        )
        crash_point("drain_outbox.put_off")
