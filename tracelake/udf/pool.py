"""Warm sandboxes: each of one organisation, one bundle and one handler, lent to one invocation at a time.

Bounded in all and for each organisation. Who finds no room waits a moment for it, and is then told that it is busy: the
Dispatcher waits better than a connection does.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import Final
from uuid import UUID

import structlog

from tracelake.errors import Busy
from tracelake.ports import Places
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import UdfSettings
from tracelake.udf.runtime_api import FunctionError
from tracelake.udf.sandbox_contents import Code
from tracelake.udf.sandbox_host import Key, Open, SandboxHost

log = structlog.get_logger()

LOOK_SECONDS: Final = 0.1
"""How often the sandboxes' memory is looked at."""
SETTLING_SECONDS: Final = 0.05


class Pool:
    def __init__(self, open_sandbox_host: Open, settings: UdfSettings) -> None:
        self._open = open_sandbox_host
        self._settings = settings
        self._idle: list[SandboxHost] = []
        self._busy: set[SandboxHost] = set()
        self._of_org: Counter[UUID] = Counter()
        """Places that are taken, also by sandboxes that are only just being made or ended."""
        self._alone: set[SandboxHost] = set()
        """Lent to tasks of the queue, which the Dispatcher's calls do not get until they end."""
        self._changed = asyncio.Condition()
        self._housework: set[asyncio.Task[None]] = set()
        self._settling: set[SandboxHost] = set()
        self._leaving = 0
        self._closed = False

    async def take(self, key: Key, code: Code, *, alone: bool = False) -> SandboxHost | FunctionError:
        """A sandbox of that key; `alone`: one that served nobody. An error is of the function itself. Else Busy."""
        try:
            async with asyncio.timeout(self._settings.wait_seconds), self._changed:
                if not alone:
                    await self._one_that_settles(key)
                while True:
                    if not alone and (warm := self._warm_one(key)) is not None:
                        return self._lend(warm)
                    if self._has_room(key.org_id):
                        break
                    self._make_room(key.org_id)
                    await self._changed.wait()
                self._of_org[key.org_id] += 1
        except TimeoutError:
            raise Busy("all sandboxes are in use", where="udf.sandboxes", hint="try again in a moment") from None
        host = await self._made(key, code)
        if alone and isinstance(host, SandboxHost):
            self._alone.add(host)
        return host

    def places(self) -> Places:
        """For calls of the Dispatcher: never none, so that it goes on asking."""
        return Places(max(1, self._settings.sandboxes - len(self._alone)), self._settings.per_org)

    def give_back(self, host: SandboxHost, *, again: bool = True) -> None:
        """To be lent again once it is at rest; otherwise ended. The caller need not wait for either."""
        task = asyncio.create_task(self._settle(host, again=again))
        self._housework.add(task)
        task.add_done_callback(self._housework.discard)

    async def look(self) -> None:
        """End what uses too much, what nobody needs, and what has died."""
        for host in [*self._busy, *self._idle]:
            if (fault := host.over_its_bounds()) is not None:
                log.warning("sandbox ended", org=str(host.key.org_id), because=fault)
                await host.kill(FunctionError("Sandbox.OutOfBounds", f"the function was ended: {fault}"))
        long_ago = time.monotonic() - self._settings.idle_seconds
        for host in [item for item in self._idle if not item.good or item.idle_since < long_ago]:
            self._idle.remove(host)
            self.give_back(host, again=False)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def drain(self) -> None:
        """Until no sandbox is lent."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._busy)

    async def close(self) -> None:
        self._closed = True
        cells = [*self._busy, *self._idle]
        self._idle.clear()
        await asyncio.gather(*(host.close() for host in cells))
        await asyncio.gather(*self._housework, return_exceptions=True)

    def _warm_one(self, key: Key) -> SandboxHost | None:
        return next((host for host in reversed(self._idle) if host.key == key and host.good), None)

    async def _one_that_settles(self, key: Key) -> None:
        """One of this key that has just answered is free in a moment: sooner than a new one could be made."""
        if self._warm_one(key) is None and any(host.key == key for host in self._settling):
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLING_SECONDS):
                    await self._changed.wait()

    def _lend(self, host: SandboxHost) -> SandboxHost:
        self._idle.remove(host)
        self._busy.add(host)
        return host

    async def _made(self, key: Key, code: Code) -> SandboxHost | FunctionError:
        try:
            host = await self._open(key, code)
        except BaseException:
            await self._leave(key.org_id)
            raise
        if isinstance(host, FunctionError):
            await self._leave(key.org_id)
            return host
        self._busy.add(host)
        return host

    def _has_room(self, org_id: UUID) -> bool:
        return self._of_org.total() < self._settings.sandboxes and self._of_org[org_id] < self._settings.per_org

    def _make_room(self, org_id: UUID) -> None:
        """The one that has waited longest goes; of this organisation, if it has all that it may. One at a time."""
        full = self._of_org[org_id] >= self._settings.per_org
        going = [host for host in self._idle if not full or host.key.org_id == org_id]
        if going and not self._leaving:
            self._idle.remove(going[0])
            self.give_back(going[0], again=False)

    async def _leave(self, org_id: UUID) -> None:
        async with self._changed:
            self._of_org[org_id] -= 1
            self._changed.notify_all()

    async def _settle(self, host: SandboxHost, *, again: bool) -> None:
        self._settling.add(host)
        self._alone.discard(host)
        at_rest = again and not self._closed and await host.settled()
        self._settling.discard(host)
        if at_rest:
            async with self._changed:
                self._busy.discard(host)
                self._idle.append(host)
                self._changed.notify_all()
            crash_point("runner.recycled")
            return
        self._leaving += 1
        await host.close()
        self._leaving -= 1
        self._busy.discard(host)
        await self._leave(host.key.org_id)
