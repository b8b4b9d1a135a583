"""One sandbox with its Runtime API, listeners and output. It runs one invocation at a time."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import aiohttp

from tracelake.capability.verifier import Verifier
from tracelake.errors import SettingsError
from tracelake.runtime.crash_points import crash_point
from tracelake.sandbox.bubblewrap import Isolation
from tracelake.sandbox.process import ResourceUsage, Sandbox, start
from tracelake.settings import Settings, UdfSettings
from tracelake.udf.forward_output import Lines, SandboxOutput
from tracelake.udf.object_proxy import ObjectProxy, Quota, StoreFor
from tracelake.udf.runtime_api import FunctionError, Result, RuntimeApi
from tracelake.udf.sandbox_contents import Code, launch
from tracelake.udf.sandbox_listener import Handle, RateLimit, SandboxListener
from tracelake.udf.task_api_proxy import TaskApiProxy
from tracelake.wire.client import TaskClient
from tracelake.wire.task.lifecycle import Invocation

MIB: Final = 1024 * 1024
SETTLE_SECONDS: Final = 1.0
"""How long threads and processes of an invocation may take to end after it."""
SETTLE_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True)
class ObjectAccess:
    """What the object endpoint of every sandbox stands on."""

    verifier: Verifier
    store_for: StoreFor
    put_bytes: int


@dataclass(frozen=True)
class SandboxContext:
    """What all sandboxes of a runner share."""

    settings: UdfSettings
    isolation: Isolation
    folder: Path
    etc: Path
    http: aiohttp.ClientSession
    tasks: TaskClient
    task_url: str
    query_url: str
    objects: ObjectAccess | None
    """None: functions reach the store themselves, with keys of their task."""


@dataclass(frozen=True)
class SandboxKey:
    """Identifies code and its owner. A sandbox never serves two keys."""

    org_id: UUID
    sha256: str
    kind: str
    handler: str


class SandboxHost:
    """Made by `open_sandbox_host`."""

    def __init__(self, key: SandboxKey, context: SandboxContext) -> None:
        self.key = key
        self.served = 0
        self.idle_since = time.monotonic()
        self._context = context
        self._api = RuntimeApi(context.settings.result_bytes)
        self._folder = context.folder / uuid4().hex[:12]
        self._listeners: list[SandboxListener] = []
        self._sandbox: Sandbox | None = None
        self._output: SandboxOutput | None = None
        self._current: Invocation | None = None
        self._lines: Lines | None = None
        self._at_rest: ResourceUsage | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def good(self) -> bool:
        """Whether it can take another invocation."""
        alive = self._sandbox is not None and self._sandbox.alive and self._closing is None
        return alive and self._api.misbehaved is None and self.served < self._context.settings.invocations

    async def open(self, code: Code) -> FunctionError | None:
        """Starts it. Returns the error, or None once it waits for its first invocation."""
        self._folder.mkdir(mode=0o755)  # mounted into the sandbox; its parent is closed to others
        self._folder.chmod(0o755)  # whatever the umask is
        listeners = self._handlers()
        for name, handle in listeners.items():
            self._listeners.append(await self._listen(name, handle))
        context = self._context
        content = launch(code, self._folder, context.etc, context.isolation, context.settings, listeners=listeners)
        self._sandbox = await start(content, context.isolation)
        crash_point("runner.sandbox_started")
        self._output = SandboxOutput(self._sandbox.output)
        fault = await self._until_waits(context.settings.start_seconds)
        if fault is None:
            self._at_rest = self._sandbox.usage()
            crash_point("runner.sandbox_made")
        return fault

    async def invoke(self, invocation: Invocation, payload: bytes, seconds: float) -> Result:
        """Returns when the function has answered or has ended. When canceled, the caller closes the host."""
        context, request_id = self._context, str(uuid4())
        self.served += 1
        self._current, self._lines = invocation, Lines(invocation, context.tasks, context.settings)
        self._begin(self._lines)
        deadline_ms = int((time.time() + seconds) * 1000)
        asked = asyncio.create_task(self._api.invoke(request_id, payload, deadline_ms))
        died = asyncio.create_task(self._until_died())
        try:
            await asyncio.wait({asked, died}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                self._api.fail(died.result() if died.done() else _timed_out(seconds))
                self._api.misbehaved = self._api.misbehaved or "it did not answer"
            return await asked
        finally:
            asked.cancel()
            died.cancel()
            self._current = None
            await self._finish_lines()

    def exceeded_limit(self) -> str | None:
        """The limit that it exceeds, if any; then it must be closed."""
        if self._sandbox is None or not self._sandbox.alive:
            return None
        used, most = self._sandbox.usage(), self._context.settings
        if self._sandbox.files_in_tmp() > most.tmp_files:
            return f"it had more than {most.tmp_files} files in /tmp"
        if used.threads > most.processes + 2:  # where the kernel does not enforce it
            return f"it had more than {most.processes} processes"
        if used.memory_bytes > most.memory_mb * MIB and self._own_memory(used) > most.memory_mb * MIB:
            return f"it used more than {most.memory_mb} MiB of memory"
        return None

    def _own_memory(self, used: ResourceUsage) -> int:
        """The sum over processes where the kernel has no better figure."""
        return (self._sandbox.own_memory() if self._sandbox else 0) or used.memory_bytes

    async def kill(self, because: FunctionError) -> None:
        self._api.fail(because)
        await self.close()

    async def settled(self) -> bool:
        """Whether everything that the invocation started has ended, and the function waits for the next one."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.good and time.monotonic() < deadline:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._api.waits.wait(), SETTLE_POLL_SECONDS)
                if self._is_at_rest():
                    self.idle_since = time.monotonic()
                    return True
                await asyncio.sleep(SETTLE_POLL_SECONDS)
        return False

    async def close(self) -> None:
        """Returns when all its processes have ended."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.kill()
            crash_point("runner.sandbox_killed")
        if self._output is not None:
            self._output.close()
        for listener in self._listeners:
            await listener.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _handlers(self) -> dict[str, Handle]:
        context = self._context
        handlers: dict[str, Handle] = {
            "runtime": self._api.handle,
            "task": self._task_api(context.task_url).handle,
            "query": self._task_api(context.query_url).handle,
        }
        return handlers if context.objects is None else {**handlers, "objects": self._objects(context.objects).handle}

    def _objects(self, access: ObjectAccess) -> ObjectProxy:
        most = self._context.settings
        return ObjectProxy(
            access.verifier,
            access.store_for,
            lambda: self._current,
            put_bytes=access.put_bytes,
            get_bytes=most.memory_mb * MIB // 2,
            quota=Quota(most.put_mb * MIB, most.put_objects),
        )

    def _task_api(self, url: str) -> TaskApiProxy:
        return TaskApiProxy(self._context.http, url, lambda: self._current is not None)

    async def _listen(self, name: str, handle: Handle) -> SandboxListener:
        most = self._context.settings
        # No limit for the Runtime API: a request out of turn ends the sandbox anyway.
        rate_limit = None if name == "runtime" else RateLimit(most.requests_per_second)
        listener = SandboxListener(handle, most.connections, rate_limit)
        await listener.open_unix(self._folder / name)
        return listener

    async def _until_waits(self, seconds: float) -> FunctionError | None:
        waits, died = asyncio.create_task(self._api.waits.wait()), asyncio.create_task(self._until_died())
        try:
            await asyncio.wait({waits, died}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._api.init_error is not None or waits.done():
                return self._api.init_error
            return died.result() if died.done() else _slow_start(seconds)
        finally:
            waits.cancel()
            died.cancel()

    async def _until_died(self) -> FunctionError:
        if self._sandbox is not None:
            await self._sandbox.until_ended()
        if self._output is not None:
            self._output.drain()
        output = self._output.start_output.strip()[-3000:] if self._output and self._at_rest is None else ""
        return FunctionError("Runtime.ExitError", f"the function's process ended{': ' if output else ''}{output}")

    def _is_at_rest(self) -> bool:
        if self._sandbox is None or self._at_rest is None:
            return False
        used = self._sandbox.usage()
        # Node and others start threads of their own on first use; these may stay.
        more_threads = used.threads > self._at_rest.threads and self.key.kind == "python"
        return used.processes <= self._at_rest.processes and not more_threads

    def _begin(self, lines: Lines) -> None:
        if self._output is not None:
            self._output.begin(lines)

    async def _finish_lines(self) -> None:
        lines, self._lines = self._lines, None
        if self._output is not None:
            self._output.end()
        if lines is not None:
            with suppress(Exception):
                await lines.close()


async def open_sandbox_host(key: SandboxKey, code: Code, context: SandboxContext) -> SandboxHost | FunctionError:
    """Starts a sandbox that waits for an invocation, or returns the error."""
    host = SandboxHost(key, context)
    try:
        fault = await host.open(code)
    except BaseException:
        await host.close()
        raise
    if fault is None:
        return host
    await host.close()
    return fault


def required_url(settings: Settings) -> str:
    """Of the task API."""
    url = settings.endpoints.dispatcher_task
    if url is None:
        name = "endpoints.dispatcher_task"
        raise SettingsError(f"{name} is not set", where=name, hint="`trace up` fills it in")
    return url


def _timed_out(seconds: float) -> FunctionError:
    return FunctionError("Sandbox.Timedout", f"Task timed out after {seconds:.2f} seconds")


def _slow_start(seconds: float) -> FunctionError:
    return FunctionError(
        "Runtime.InitTimedout", f"the function did not request its first task within {seconds:.0f} seconds"
    )


Open = Callable[[SandboxKey, Code], Awaitable[SandboxHost | FunctionError]]
