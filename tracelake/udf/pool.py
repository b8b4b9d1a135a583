"""A pool of warm sandboxes, each for one organisation, bundle and handler, used by one invocation at a time.

Limited in total and per organisation. A call without a free sandbox waits briefly, then fails with Busy: the Dispatcher
retries, which is cheaper than an open connection.
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
from tracelake.udf.sandbox_host import Open, SandboxHost, SandboxKey

log = structlog.get_logger()

LOOK_SECONDS: Final = 0.1
"""How often the limits of sandboxes are checked."""
SETTLING_SECONDS: Final = 0.05


class Pool:
    def __init__(self, open_sandbox_host: Open, settings: UdfSettings) -> None:
        self._open = open_sandbox_host
        self._settings = settings
        self._idle: list[SandboxHost] = []
        self._busy: set[SandboxHost] = set()
        self._of_org: Counter[UUID] = Counter()
        """Sandboxes per organisation, with those that are being started or ended."""
        self._alone: set[SandboxHost] = set()
        """Used by tasks of the queue; not available for calls of the Dispatcher."""
        self._changed = asyncio.Condition()
        self._background: set[asyncio.Task[None]] = set()
        self._settling: set[SandboxHost] = set()
        self._leaving = 0
        self._closed = False

    async def take(self, key: SandboxKey, code: Code, *, alone: bool = False) -> SandboxHost | FunctionError:
        """Takes a sandbox for the key; `alone`: an unused one. Returns an error of the function; raises Busy."""
        try:
            async with asyncio.timeout(self._settings.wait_seconds), self._changed:
                if not alone:
                    await self._wait_for_settling(key)
                while True:
                    if not alone and (warm := self._warm_host(key)) is not None:
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
        """For calls of the Dispatcher; at least one, so that it keeps calling."""
        return Places(max(1, self._settings.sandboxes - len(self._alone)), self._settings.per_org)

    def give_back(self, host: SandboxHost, *, again: bool = True) -> None:
        """Returns a sandbox to the pool once it is idle, or ends it, in the background."""
        task = asyncio.create_task(self._settle(host, again=again))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def look(self) -> None:
        """Ends sandboxes that exceed a limit, are idle for too long, or have died."""
        for host in [*self._busy, *self._idle]:
            if (fault := host.exceeded_limit()) is not None:
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
        """Waits until no sandbox is in use."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._busy)

    async def close(self) -> None:
        self._closed = True
        hosts = [*self._busy, *self._idle]
        self._idle.clear()
        await asyncio.gather(*(host.close() for host in hosts))
        await asyncio.gather(*self._background, return_exceptions=True)

    def _warm_host(self, key: SandboxKey) -> SandboxHost | None:
        return next((host for host in reversed(self._idle) if host.key == key and host.good), None)

    async def _wait_for_settling(self, key: SandboxKey) -> None:
        """Waits briefly for a sandbox of this key that has just answered: faster than starting a new one."""
        if self._warm_host(key) is None and any(host.key == key for host in self._settling):
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLING_SECONDS):
                    await self._changed.wait()

    def _lend(self, host: SandboxHost) -> SandboxHost:
        self._idle.remove(host)
        self._busy.add(host)
        return host

    async def _made(self, key: SandboxKey, code: Code) -> SandboxHost | FunctionError:
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
        """Ends the sandbox that is idle longest; one of this organisation if it is at its limit. One at a time."""
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
