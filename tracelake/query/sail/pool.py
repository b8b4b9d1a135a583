"""The engines of organisations: started on demand, kept while they are used, ended when idle or too large."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog

from tracelake.errors import Busy, SetupError
from tracelake.ports import ObjectStore
from tracelake.query.engine import CannotRun
from tracelake.query.sail.server import SailPlace, SailServer, sail_folder, start_server
from tracelake.runtime.metrics import Metrics
from tracelake.sandbox.bubblewrap import choose_isolation
from tracelake.sandbox.contents import MIB, write_etc
from tracelake.settings import QuerySettings

LOOK_SECONDS: Final = 0.1
log = structlog.get_logger()


class SailPool:
    """Belongs to one event loop, in the main thread: a sandbox ends with the thread that started it."""

    def __init__(self, folder: Path, objects: ObjectStore, settings: QuerySettings, metrics: Metrics) -> None:
        self._folder = folder
        self._objects = objects
        self._settings = settings
        self._metrics = metrics
        self._place: asyncio.Task[SailPlace] | None = None
        self._servers: dict[UUID, asyncio.Task[SailServer]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def take(self, org_id: UUID) -> SailServer:
        """Return the running engine of the organisation, which is started first if there is none."""
        place = await self._prepared()
        if self._usable(org_id) is None:
            await self._make_room(org_id)
        starting = self._usable(org_id)
        if starting is None:
            starting = self._servers[org_id] = asyncio.create_task(start_server(org_id, place))
        server = await asyncio.shield(starting)  # a caller that leaves does not end the start for others
        server.running += 1
        return server

    def give_back(self, server: SailServer) -> None:
        server.running -= 1
        server.idle_since = time.monotonic()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for task in list(self._servers.values()):
            await _end(task)
        self._servers.clear()
        if self._place is not None and self._place.done() and not self._place.exception():
            self._place.result().isolation.close()
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _prepared(self) -> SailPlace:
        if self._place is None:
            self._place = asyncio.create_task(self._prepare())
            self._watching = asyncio.create_task(self._watch())
        try:
            return await asyncio.shield(self._place)
        except SetupError:
            raise CannotRun("not_set_up") from None

    async def _prepare(self) -> SailPlace:
        """What is missing is logged once, here: every query would log it otherwise."""
        try:
            sail = sail_folder()
            isolation = await asyncio.to_thread(choose_isolation)
        except SetupError as error:
            log.warning("queries cannot run on Sail", **error.as_dict())
            raise
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)  # of a process that was killed
        self._folder.mkdir(parents=True, mode=0o700)
        etc = await asyncio.to_thread(write_etc, self._folder / "etc")
        return SailPlace(self._folder, sail, etc, isolation, self._objects, self._settings)

    def _usable(self, org_id: UUID) -> asyncio.Task[SailServer] | None:
        task = self._servers.get(org_id)
        return task if task is not None and (not task.done() or _is_good(task)) else None

    async def _make_room(self, org_id: UUID) -> None:
        """End what is left of the organisation's last engine, and the engine that is idle for longest if need be."""
        if (last := self._servers.pop(org_id, None)) is not None:
            await _end(last)
        if len(self._servers) < self._settings.sail_processes:
            return
        idle = min((server for server in self._running() if not server.running), key=_idle_since, default=None)
        if idle is None:
            raise Busy("as many organisations query at once as can be served", hint="retry in a moment")
        await _end(self._servers.pop(idle.org_id))

    def _running(self) -> list[SailServer]:
        return [task.result() for task in self._servers.values() if task.done() and _is_good(task)]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for org_id, task in list(self._servers.items()):
                if task.done() and self._is_over(task) and self._servers.get(org_id) is task:
                    del self._servers[org_id]
                    await _end(task)
            self._metrics.query_engines.set(len(self._servers))

    def _is_over(self, task: asyncio.Task[SailServer]) -> bool:
        """Whether an engine has ended, is too large, or was not used for long."""
        if not _is_good(task):
            return True
        server = task.result()
        if server.memory_bytes > self._settings.sail_memory_mb * MIB:
            server.over_memory = True
            return True
        return not server.running and time.monotonic() - server.idle_since > self._settings.sail_idle_seconds


def _is_good(task: asyncio.Task[SailServer]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().alive


def _idle_since(server: SailServer) -> float:
    return server.idle_since


async def _end(task: asyncio.Task[SailServer]) -> None:
    with suppress(Exception):  # it did not start, and left nothing
        await (await task).end()
