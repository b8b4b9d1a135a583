"""Dispatches outbox entries that this replica has taken: acts outside a transaction, then marks them as done.

An entry may be dispatched twice, which is harmless: a task can be claimed once only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.signal import Signal
from tracelake.domain.flow.pressure import Priority
from tracelake.domain.flow.tiers import queue_of_tier
from tracelake.domain.task import Backoff, retry_delay
from tracelake.errors import Unavailable
from tracelake.ports import Outgoing, Queue, QueueGroup
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import RuntimeSettings
from tracelake.store.queries import queries

BACKOFF: Final = Backoff(1, 300)
UNKNOWN_RUNTIME_DELAY: Final = timedelta(minutes=1)
"""How soon to try again a task whose runtime is not in the settings: it may be there after a restart."""


@dataclass(frozen=True)
class WakeUp:
    """An entry to wake a task, taken by this replica: its id and its payload."""

    entry: int
    payload: str


@dataclass(frozen=True)
class OutboxEntry:
    """An entry that this replica has taken, and its action: a message, a task run here, or a function called."""

    id: int
    queue: str | None = None
    message: bytes = b""
    group: QueueGroup | None = None
    task_id: UUID | None = None
    called: Signal | None = None
    """Of what calls the function or starts the job run: notified when the task is woken."""


@dataclass(frozen=True)
class EntryDispatcher:
    database: asyncpg.Pool
    queue: Queue
    runtimes: Mapping[str, RuntimeSettings]
    replica: str
    called: Mapping[str, Signal] = field(default_factory=dict)
    """By runtime: notified of tasks for which a function is called or a job run started from here."""
    run_here: Callable[[Sequence[UUID]], Awaitable[object]] | None = None
    """Runs tasks in this process; None where only messages are published."""

    def entry_of(self, wake_up: WakeUp) -> OutboxEntry:
        """How the task gets to its runtime; no action at all if that is unknown here."""
        payload = msgspec.json.decode(wake_up.payload)
        runtime, task_id = self.runtimes.get(payload["runtime"]), UUID(payload["task_id"])
        match runtime.invoker if runtime else None:
            case "in_process":
                return OutboxEntry(wake_up.entry, task_id=task_id)
            case "function" | "job_run" if payload["runtime"] in self.called:
                return OutboxEntry(wake_up.entry, task_id=task_id, called=self.called[payload["runtime"]])
            case "queue" if runtime and runtime.queue:
                # Entries of an earlier version name neither tier nor job.
                queue = queue_of_tier(runtime.queue, Priority(payload.get("priority", Priority.NORMAL)))
                group = (payload["org_id"], payload["job_id"]) if "job_id" in payload else None
                return OutboxEntry(wake_up.entry, queue, msgspec.json.encode({"task_id": task_id}), group)
            case _:
                return OutboxEntry(wake_up.entry)

    async def dispatch(self, entries: Sequence[OutboxEntry]) -> None:
        called = {entry.id: entry.called for entry in entries if entry.called is not None}
        await self.mark([*await self.publish(entries), *called])
        for signal in set(called.values()):  # Queued and woken: the loop finds them among the tasks
            signal.notify()
        unknown = [entry.id for entry in entries if entry.queue is None and entry.task_id is None]
        if unknown:
            error = "its runtime is not in the settings of this Dispatcher, or its invoker is not there"
            await self.postpone(unknown, error, delay=UNKNOWN_RUNTIME_DELAY)
        await self._run_here({entry.task_id: entry.id for entry in entries if entry.task_id and not entry.called})

    async def publish(self, entries: Sequence[OutboxEntry]) -> list[int]:
        """Publishes those that are messages; the ids of those that were, to be marked."""
        by_queue: dict[str, list[OutboxEntry]] = defaultdict(list)
        for entry in entries:
            if entry.queue is not None:
                by_queue[entry.queue].append(entry)
        published = list[int]()
        for queue, group in by_queue.items():
            sent = self.queue.publish(queue, [Outgoing(entry.message, group=entry.group) for entry in group])
            published += await self._act([entry.id for entry in group], sent)
        return published

    async def mark(self, entries: Sequence[int]) -> None:
        if entries:
            crash_point("drain_outbox.before_mark")
            await self.database.execute(queries("outbox")["mark_entries_done"], entries, self.replica)
            crash_point("drain_outbox.after_mark")

    async def postpone(
        self, entries: Sequence[int], error: str, *, final: bool = False, delay: timedelta | None = None
    ) -> None:
        """They are tried again soon, for as long as it takes; with `final`, they are given up."""
        delay = delay or timedelta(seconds=retry_delay(1, BACKOFF, 0.5))
        sql, count = queries("outbox")["postpone_entries"], len(entries)
        await self.database.execute(sql, entries, self.replica, [delay] * count, [error] * count, [final] * count)
        crash_point("drain_outbox.put_off")

    async def _run_here(self, tasks: dict[UUID, int]) -> None:
        if tasks and self.run_here is not None:
            await self.mark(await self._act(list(tasks.values()), self.run_here(list(tasks))))

    async def _act(self, entries: list[int], action: Awaitable[object]) -> list[int]:
        """All of them, or none if a service that they need is unavailable."""
        try:
            crash_point("drain_outbox.before_act")
            await action
        except Unavailable as away:
            await self.postpone(entries, away.message)
            return []
        return entries
