"""One child process under supervision: its start, readiness, watchdog, restarts and stop.

A child is ready when it reports so over the notify protocol (see `runtime/process.py`) or when its probe answers; it is
alive as long as it keeps reporting. A child that ends, or stops reporting, is restarted with exponential backoff.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tracelake.errors import SetupError
from tracelake.lite.end_orphans import OrphanGuard, end_sessions
from tracelake.lite.launch import Launch, spawn
from tracelake.lite.log_files import last_lines
from tracelake.runtime.disk import is_full
from tracelake.runtime.retry import delay_after, sleep_unless
from tracelake.settings import UpSettings

State = Literal["waiting", "starting", "ready", "restarting", "held back", "stopping", "stopped", "failed"]

FAILURES_BEFORE_HELD_BACK = 3
"""A child that failed so often in a row is `held back`: it is restarted with backoff, and no start waits for it.
Only an essential child that ended by itself makes the start fail."""

DRAIN_LOOK_SECONDS = 0.5
"""How soon a child that drains learns that it has no more time."""


@dataclass(frozen=True)
class Child:
    """A process to supervise."""

    name: str
    launch: Callable[[], Launch]
    """Called before each start, off the event loop: it may clean up after the last process."""
    listeners: Sequence[str] = ()
    probe: Callable[[], bool] | None = None
    """For a child that does not use the notify protocol: whether it answers."""
    stop_signal: signal.Signals = signal.SIGTERM
    essential: bool = False
    """Nothing works without it: if it fails repeatedly before it was ever ready, `start` raises."""


@dataclass(frozen=True)
class ChildStatus:
    """The state of a child, as `trace status` shows it."""

    name: str
    state: State = "waiting"
    pid: int | None = None
    since: float = 0.0
    restarts: int = 0
    listeners: Sequence[str] = ()
    status: str = ""
    held_back: str = ""
    """Why it was held back, until it is ready: meanwhile it is started again and again."""


@dataclass(frozen=True)
class SupervisorContext:
    """What all children of a supervisor share."""

    settings: UpSettings
    logs: Path
    sockets: Path
    guard: OrphanGuard
    report: Callable[[ChildStatus], None]

    def log_of(self, name: str) -> Path:
        return self.logs / f"{name}.log"


class SupervisedChild:
    """Starts one child process, watches it and restarts it until `end`."""

    def __init__(self, child: Child, context: SupervisorContext) -> None:
        self.child = child
        self.status = ChildStatus(child.name, listeners=child.listeners)
        self.first_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._context = context
        self._stopping = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._reported = _ReportedState()
        self._loop: asyncio.Task[None] | None = None
        self._failures = 0
        self._ended_by_itself = True
        self._drains = False

    def begin(self) -> None:
        self._loop = asyncio.create_task(self._run())

    async def end(self) -> None:
        self._drains = False
        await self._end()

    async def drain(self) -> None:
        """Ends it when its work is over, however long that takes; `end` may still come."""
        self._drains = True
        await self._end()

    async def _end(self) -> None:
        self._stopping.set()
        if self._loop is not None:
            await asyncio.gather(self._loop, return_exceptions=True)
        self._set_state("stopped", pid=None, status="")

    async def _run(self) -> None:
        while not self._stopping.is_set():
            reason = await self._run_once()
            if self._stopping.is_set():
                return
            restarts, pause = self.status.restarts + 1, self._backoff()
            if self._failures < FAILURES_BEFORE_HELD_BACK:
                self._set_state("restarting", pid=None, status=reason, restarts=restarts)
            elif self.child.essential and self._ended_by_itself and not self.first_ready.done():
                self._set_state("failed", pid=None, status=reason, restarts=restarts)
                self.first_ready.set_exception(self._cannot_start(reason))
                return
            else:
                why = self._held_back_reason(reason, pause)
                self._set_state("held back", pid=None, status=why, held_back=why, restarts=restarts)
                if not self.child.essential and not self.first_ready.done():
                    self.first_ready.set_result(None)
            await sleep_unless(self._stopping, pause)

    async def _run_once(self) -> str:
        """Runs the process from start to end; returns why it ended."""
        self._set_state("starting", status="", since=time.time())
        self._ended_by_itself = True
        try:
            launch = await asyncio.to_thread(self.child.launch)
            with self._listening():
                return await self._spawn_and_watch(launch)
        except (SetupError, OSError) as error:
            self._failures += 1
            return f"cannot be started: {error}"

    async def _spawn_and_watch(self, launch: Launch) -> str:
        process = self._spawn(launch)
        try:
            return await self._watch(process)
        finally:
            end_sessions({process.pid})  # its descendants, before the next start
            self._context.guard.remove(process.pid)

    def _spawn(self, launch: Launch) -> subprocess.Popen[bytes]:
        notify = {
            "NOTIFY_SOCKET": str(self._channel_path()),
            "WATCHDOG_USEC": str(int(self._context.settings.watchdog_seconds * 1e6)),
        }
        env = launch.env if self.child.probe else {**launch.env, **notify}
        with self._log.open("ab") as log:
            self._process = spawn(replace(launch, env=env), log)
        self._context.guard.add(self._process.pid)
        self._set_state("starting", pid=self._process.pid)
        return self._process

    async def _watch(self, process: subprocess.Popen[bytes]) -> str:
        ended = asyncio.create_task(_wait_for_exit(process))
        started = time.monotonic()
        reason = ""
        while not ended.done():
            await self._wait_for_change(ended)
            if ended.done():
                break
            if self._stopping.is_set():
                await self._wait_for_stop(process, ended)
                break
            if self._reported.ready and self.status.state != "ready":
                self._set_ready()
            if self.status.status != self._reported.status:
                self._set_state(self.status.state, status=self._reported.status)
            reason = self._overdue(started)
            if reason:
                process.kill()
                await ended
        if time.monotonic() - started > self._context.settings.steady_seconds:
            self._failures = 0
        self._failures += 1
        self._ended_by_itself = bool(reason) or process.returncode >= 0
        return reason or _describe_exit(process.returncode)

    async def _wait_for_change(self, ended: asyncio.Task[None]) -> None:
        """Waits until the process ends, reports, must stop, or the next probe is due."""
        stopping = asyncio.create_task(self._stopping.wait())
        reported = asyncio.create_task(self._reported.event.wait())
        done, _ = await asyncio.wait(
            {ended, stopping, reported}, timeout=self._pause(), return_when=asyncio.FIRST_COMPLETED
        )
        stopping.cancel()
        reported.cancel()
        self._reported.event.clear()
        if self.child.probe and not done and await asyncio.to_thread(self.child.probe):
            self._reported.update("READY=1\nWATCHDOG=1")

    def _pause(self) -> float:
        """A probe opens a connection: probe often during a start, then as often as the watchdog needs."""
        if not self.child.probe:
            return 1.0
        return min(5.0, self._context.settings.watchdog_seconds / 3) if self._reported.ready else 0.05

    def _overdue(self, started: float) -> str:
        settings = self._context.settings
        now = time.monotonic()
        if not self._reported.ready and now - started > settings.start_seconds:
            return f"was not ready after {settings.start_seconds:.0f} s"
        if self._reported.ready and now - self._reported.last > settings.watchdog_seconds:
            return f"gave no sign of life for {settings.watchdog_seconds:.0f} s"
        return ""

    async def _wait_for_stop(self, process: subprocess.Popen[bytes], ended: asyncio.Task[None]) -> None:
        """Sends the signal once: a process that receives it twice drops its work and exits at once."""
        if process.poll() is None:
            self._set_state("stopping", status="")
            process.send_signal(self.child.stop_signal)
        late: float | None = None
        while not ended.done():
            if late is None and not self._drains:
                late = time.monotonic() + self._context.settings.stop_seconds
            left = DRAIN_LOOK_SECONDS if late is None else late - time.monotonic()
            if left <= 0:
                process.kill()
                await ended
                return
            await asyncio.wait({ended}, timeout=min(left, DRAIN_LOOK_SECONDS))

    def _set_ready(self) -> None:
        self._set_state("ready", status=self._reported.status, held_back="")
        if not self.first_ready.done():
            self.first_ready.set_result(None)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Receives the process's notify messages."""
        self._reported = _ReportedState()
        channel = self._listen()
        try:
            yield
        finally:
            asyncio.get_running_loop().remove_reader(channel)
            channel.close()
            self._channel_path().unlink(missing_ok=True)

    def _listen(self) -> socket.socket:
        path = self._channel_path()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        channel.setblocking(False)  # noqa: FBT003 - the standard library's signature
        channel.bind(str(path))
        reported = self._reported

        def read() -> None:
            reported.update(channel.recv(4096).decode(errors="replace"))

        asyncio.get_running_loop().add_reader(channel, read)
        return channel

    @property
    def _log(self) -> Path:
        return self._context.log_of(self.child.name)

    def _channel_path(self) -> Path:
        return self._context.sockets / "notify" / self.child.name

    def _backoff(self) -> float:
        settings = self._context.settings
        return delay_after(self._failures, settings.backoff_seconds, settings.backoff_max_seconds)

    def _held_back_reason(self, reason: str, pause: float) -> str:
        again = time.strftime("%H:%M:%S", time.localtime(time.time() + pause))
        last = last_lines(self._log, 1)
        logged = f"; its log ends: {last}" if last else ""
        if is_full(self._log.parent):
            logged = "; the disk of the home folder is full: free space there"
        return f"{reason}, {self._failures} times in a row; next start at {again}{logged}"

    def _cannot_start(self, reason: str) -> SetupError:
        hint = last_lines(self._log, 3) or "read that log"
        return SetupError(f"{self.child.name} does not start: {reason}", where=str(self._log), hint=hint)

    def _set_state(self, state: State, **changes: object) -> None:
        status = replace(self.status, state=state, **changes)  # type: ignore[arg-type]
        if status != self.status:
            self.status = status
            self._context.report(status)


@dataclass
class _ReportedState:
    """What a child has reported since it started."""

    ready: bool = False
    status: str = ""
    last: float = field(default_factory=time.monotonic)
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def update(self, message: str) -> None:
        self.last = time.monotonic()
        for line in message.splitlines():
            key, _, value = line.partition("=")
            if key == "READY":
                self.ready = True
            elif key == "STATUS":
                self.status = value
        self.event.set()


async def _wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    handle = os.pidfd_open(process.pid)
    loop.add_reader(handle, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    process.wait()


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
