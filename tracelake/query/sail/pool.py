"""The engines of organisations: started on demand, kept while they are used, ended when idle or too large."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog

from tracelake.errors import Busy, SetupError
from tracelake.ports import ObjectStore
from tracelake.query.engine import CannotRun
from tracelake.query.sail.own_folder import OwnFolder, remove_leftovers
from tracelake.query.sail.server import SailPlace, SailServer, sail_folder, start_server
from tracelake.runtime.metrics import Metrics
from tracelake.sandbox.bubblewrap import choose_isolation
from tracelake.sandbox.cgroup import find_cgroups
from tracelake.sandbox.contents import write_etc
from tracelake.settings import QuerySettings

LOOK_SECONDS: Final = 0.1
STILL_SECONDS: Final = 1.0
"""An engine that was not used for so long does not grow."""
MOST_STARTS: Final = max(2, os.cpu_count() or 2)
"""Engines that start at once: more would only slow each other, and what runs."""
log = structlog.get_logger()


class SailPool:
    """Belongs to one event loop, in the main thread: a sandbox ends with the thread that started it."""

    def __init__(self, folder: Path, objects: ObjectStore, settings: QuerySettings, metrics: Metrics) -> None:
        self._parent = folder
        """Of the folders of all processes with this home."""
        self._folder: OwnFolder | None = None
        self._objects = objects
        self._settings = settings
        self._metrics = metrics
        self._place: asyncio.Task[SailPlace] | None = None
        self._servers: dict[UUID, asyncio.Task[SailServer]] = {}
        self._used: Counter[UUID] = Counter()
        """By organisation: queries that run in its engine, or wait for its start."""
        self._adding: dict[UUID, asyncio.Task[asyncio.Task[SailServer]]] = {}
        self._retired: set[SailServer] = set()
        """Engines that run their last queries: one an organisation at most."""
        self._changing = asyncio.Lock()
        """Held while an engine is added: by one organisation at a time, in the order in which they came."""
        self._freed = asyncio.Event()
        self._starts = asyncio.Semaphore(MOST_STARTS)
        self._watching: asyncio.Task[None] | None = None

    async def take(self, org_id: UUID) -> SailServer:
        """Return the running engine of the organisation, which is started first if there is none."""
        place = await self._prepared()
        starting = self._usable(org_id) or await self._added(org_id, place)
        self._used[org_id] += 1
        try:
            server = await asyncio.shield(starting)  # a caller that leaves does not end the start for others
        except BaseException:
            self._release(org_id)
            raise
        server.running += 1
        return server

    def give_back(self, server: SailServer) -> None:
        server.running -= 1
        server.idle_since = time.monotonic()
        self._release(server.org_id)

    async def remove_leftovers(self) -> None:
        """Remove what a process left that was killed: its engines ended with it, their folders and groups did not."""
        await asyncio.to_thread(remove_leftovers, self._parent)
        cgroups = await asyncio.to_thread(find_cgroups, str(self._parent))
        if cgroups is not None:
            cgroups.remove_empty()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for task in list(self._servers.values()):
            await _end(task)
        for server in self._retired:
            await server.end()
        self._servers.clear()
        if self._place is not None and self._place.done() and not self._place.exception():
            self._place.result().isolation.close()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.remove)
            self._folder = None

    def _release(self, org_id: UUID) -> None:
        self._used[org_id] -= 1
        if not self._used[org_id]:
            del self._used[org_id]
            self._freed.set()

    async def _prepared(self) -> SailPlace:
        if self._place is None:
            self._place = asyncio.create_task(self._prepare())
            self._watching = self._watching or asyncio.create_task(self._watch())
        try:
            return await asyncio.shield(self._place)
        except SetupError:
            raise CannotRun("not_set_up") from None
        except OSError:
            self._place = None  # a full disk, which may have room later
            raise CannotRun("files") from None

    async def _prepare(self) -> SailPlace:
        """What is missing is logged once, here: every query would log it otherwise."""
        try:
            sail = sail_folder()
            isolation = await asyncio.to_thread(choose_isolation)
        except SetupError as error:
            hint = error.hint if error.where is None else "`trace doctor` shows what a sandbox needs"
            log.warning("Sail cannot run queries; Spark runs all of them", reason=error.message, hint=hint)
            raise
        await self.remove_leftovers()
        self._folder = self._folder or OwnFolder(self._parent)
        path = self._folder.path
        etc = await asyncio.to_thread(write_etc, path / "etc")
        cgroups = await asyncio.to_thread(find_cgroups, str(self._parent))
        if cgroups is None:
            log.info("no cgroups can be made here; engines have a lower priority instead", setting="query.sail_cpus")
        return SailPlace(path, sail, etc, isolation, cgroups, self._objects, self._settings)

    def _usable(self, org_id: UUID) -> asyncio.Task[SailServer] | None:
        task = self._servers.get(org_id)
        return task if task is not None and (not task.done() or _is_good(task)) else None

    async def _added(self, org_id: UUID, place: SailPlace) -> asyncio.Task[SailServer]:
        """Return the start of a new engine, which all queries of the organisation wait for."""
        if org_id not in self._adding:
            self._adding[org_id] = asyncio.create_task(self._add(org_id, place))
        return await asyncio.shield(self._adding[org_id])

    async def _add(self, org_id: UUID, place: SailPlace) -> asyncio.Task[SailServer]:
        try:
            async with asyncio.timeout(self._settings.wait_seconds), self._changing:
                await self._make_room(org_id)
            self._servers[org_id] = asyncio.create_task(self._start(org_id, place))
            return self._servers[org_id]
        except TimeoutError:
            raise Busy("as many organisations query at once as can be served", hint="retry in a moment") from None
        finally:
            del self._adding[org_id]

    async def _start(self, org_id: UUID, place: SailPlace) -> SailServer:
        async with self._starts:
            return await start_server(org_id, place)

    async def _make_room(self, org_id: UUID) -> None:
        """End what is left of the organisation's last engine and, if need be, the engine that is idle for longest."""
        if (last := self._servers.pop(org_id, None)) is not None:
            await _end(last)
        while len(self._servers) >= self._settings.sail_processes:
            self._freed.clear()
            idle = min(
                (server for server in self._running() if not self._used[server.org_id]), key=_idle_since, default=None
            )
            if idle is None:
                await self._freed.wait()
            else:
                await _end(self._servers.pop(idle.org_id))

    def _running(self) -> list[SailServer]:
        return [task.result() for task in self._servers.values() if task.done() and _is_good(task)]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for org_id, task in list(self._servers.items()):
                if task.done() and self._is_over(org_id, task) and self._servers.get(org_id) is task:
                    del self._servers[org_id]
                    await self._end_or_retire(task)
                    self._freed.set()
            for server in [server for server in self._retired if not server.running or server.size() == "too large"]:
                self._retired.discard(server)
                await server.end()
            self._metrics.query_engines.set(len(self._servers) + len(self._retired))

    async def _end_or_retire(self, task: asyncio.Task[SailServer]) -> None:
        """An engine that only has grown still runs the queries that it has; the next one starts another."""
        if _is_good(task) and task.result().running and not task.result().over_memory:
            self._retired.add(task.result())
        else:
            await _end(task)

    def _is_over(self, org_id: UUID, task: asyncio.Task[SailServer]) -> bool:
        """Whether an engine has ended, is too large, has grown, or was not used for long."""
        if not _is_good(task):
            return True
        server, idle = task.result(), time.monotonic() - task.result().idle_since
        if self._used[org_id] or idle < STILL_SECONDS:  # to measure it takes a millisecond
            size = server.size()
            if size == "too large" or (size == "grown" and not any(old.org_id == org_id for old in self._retired)):
                return True
        return not self._used[org_id] and idle > self._settings.sail_idle_seconds


def _is_good(task: asyncio.Task[SailServer]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().alive


def _idle_since(server: SailServer) -> float:
    return server.idle_since


async def _end(task: asyncio.Task[SailServer]) -> None:
    with suppress(Exception):  # it did not start, and left nothing
        await (await task).end()
