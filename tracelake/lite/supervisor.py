"""Keeps a set of child processes alive: starts them in order, restarts those that end, stops them all.

Every child has a session of its own, so that all its descendants can be ended; `end_orphans.py` does so if this process
is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from tracelake.errors import SetupError
from tracelake.lite.child import Child, ChildStatus, SupervisedChild, SupervisorContext
from tracelake.lite.end_orphans import OrphanGuard
from tracelake.lite.log_files import rotate_log
from tracelake.settings import UpSettings


class Supervisor:
    """Use as: `start` each stage in order, `watch`, `stop`. `changed` is called when a child's state changes."""

    def __init__(self, settings: UpSettings, logs: Path, sockets: Path, changed: Callable[[ChildStatus], None]) -> None:
        self._guard = OrphanGuard()
        self._context = SupervisorContext(settings, logs, sockets, self._guard, changed)
        self._stages: list[list[SupervisedChild]] = []
        self._ahead: list[SupervisedChild] = []
        self._chores: asyncio.Task[None] | None = None

    @property
    def statuses(self) -> list[ChildStatus]:
        return [child.status for child in self._children]

    @property
    def _children(self) -> list[SupervisedChild]:
        return [child for stage in [*self._stages, self._ahead] for child in stage]

    async def start(self, stage: Sequence[Child], *, ahead: bool = False) -> None:
        """Starts them together; returns when each is ready or held back. Raises if an essential one cannot start.

        `ahead`: started before the processes it depends on, and stopped with the last stage.
        """
        self._guard.ensure_running()
        started = [SupervisedChild(child, self._context) for child in stage]
        if ahead:
            self._ahead += started
        else:
            self._stages.append(started)
        for child in started:
            child.begin()
        try:
            await asyncio.gather(*(child.first_ready for child in started))
        except SetupError:
            for child in started:
                child.first_ready.cancel()
            raise

    def add(self, child: Child) -> None:
        """Starts one more, which no start waits for, and which is stopped with the last stage."""
        added = SupervisedChild(child, self._context)
        self._ahead.append(added)
        added.begin()

    async def drain(self, name: str) -> None:
        """Ends one of those when its work is over; then it is gone from `statuses`."""
        (child,) = (child for child in self._children if child.child.name == name)
        await child.drain()
        for stage in [*self._stages, self._ahead]:
            if child in stage:
                stage.remove(child)
        self._context.report(child.status)

    async def stop(self) -> None:
        """Stops the stages in reverse order; a child that does not end in time is killed with its descendants."""
        if self._chores is not None:
            self._chores.cancel()
        *before, last = self._stages or [[]]
        for stage in ([*last, *self._ahead], *reversed(before)):
            await asyncio.gather(*(child.end() for child in stage))
        self._guard.close()

    def watch(self) -> None:
        """Rotates logs and restarts a killed guard, until `stop`."""
        self._chores = asyncio.create_task(self._do_chores())

    async def _do_chores(self) -> None:
        while True:
            await asyncio.sleep(5)
            self._guard.ensure_running()
            for child in self._children:
                rotate_log(self._context.log_of(child.child.name), self._context.settings.log_megabytes)
