"""Starts and stops worker processes by need, between `worker.min` and `worker.max` (`domain/flow/workers.py` decides).

A worker that is stopped takes no more tasks and finishes those it has: no lease is lost to it. The first is called
`worker`, the others `worker-2` and so on; the last one started is the first to be stopped.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from tracelake.domain.flow.workers import WorkerFleet, WorkerLoad, needed_workers, wanted_workers
from tracelake.errors import TraceError
from tracelake.lite.child import Child
from tracelake.lite.launch import Launch
from tracelake.lite.supervisor import Supervisor
from tracelake.runtime.process import PROCESSES
from tracelake.settings import WorkerSettings

LOOK_SECONDS: Final = 2.0
FIRST: Final = "worker"


class ScaleWorkers:
    """`load` asks the Dispatcher; while it does not answer, everything stays as it is."""

    def __init__(
        self,
        supervisor: Supervisor,
        worker: Child,
        settings: WorkerSettings,
        load: Callable[[], Awaitable[WorkerLoad]],
        *,
        running: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`running`: how many have been started already."""
        self._supervisor, self._worker, self._settings, self._load = supervisor, worker, settings, load
        self._clock = clock
        self._numbers = list(range(1, running + 1))
        self._busy_at = self._full_at = clock()
        self._draining: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(LOOK_SECONDS)

    async def once(self) -> int:
        """How many workers take tasks now."""
        try:
            load = await self._load()
        except TraceError:
            return len(self._numbers)
        wanted = wanted_workers(load, self._fleet(load))
        while len(self._numbers) < wanted:
            self._start()
        while len(self._numbers) > wanted:
            self._stop(self._numbers.pop())
        return wanted

    def _fleet(self, load: WorkerLoad) -> WorkerFleet:
        """Remembers since when nothing was there to do, and since when fewer workers would be enough."""
        now, settings = self._clock(), self._settings
        if not load.is_idle:
            self._busy_at = now
        fleet = WorkerFleet(
            workers=len(self._numbers),
            least=settings.min,
            most=settings.max,
            slots=settings.concurrency,
            idle_seconds=now - self._busy_at,
            spare_seconds=0.0,
            stop_after_seconds=settings.spare_seconds,
        )
        if needed_workers(load, fleet) >= len(self._numbers):
            self._full_at = now
        return replace(fleet, spare_seconds=now - self._full_at)

    def _start(self) -> None:
        taken = {*self._numbers, *self._draining}
        number = next(number for number in range(1, len(taken) + 2) if number not in taken)
        self._numbers.append(number)
        self._supervisor.add(_numbered(self._worker, number))

    def _stop(self, number: int) -> None:
        draining = asyncio.create_task(self._supervisor.drain(_name(number)))
        self._draining[number] = draining
        draining.add_done_callback(lambda _: self._draining.pop(number, None))


def _name(number: int) -> str:
    return FIRST if number == 1 else f"{FIRST}-{number}"


def _numbered(worker: Child, number: int) -> Child:
    """The same process under another name, whose metrics have a port of their own."""
    if number == 1:
        return worker

    def launch() -> Launch:
        made = worker.launch()
        settings = json.loads(made.stdin)
        if port := settings.get("metrics", {}).get("port"):
            settings["metrics"]["port"] = port - PROCESSES.index(FIRST) + len(PROCESSES) + number
        return replace(made, stdin=json.dumps(settings).encode())

    return replace(worker, name=_name(number), launch=launch)
