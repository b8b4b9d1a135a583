"""Keeps a set of child processes alive: starts them in order, hears how they are, restarts what ends, stops all.

A child is ready when it says so (notify protocol, see `runtime/process.py`) or when its probe answers; it is alive as
long as it goes on saying so. One that ends, or stops saying so, is started again after a wait that doubles. Every child
has a session of its own, so that all its descendants can be ended; `end_orphans.py` does so if this process is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tracelake.errors import SetupError
from tracelake.lite.end_orphans import end_sessions
from tracelake.lite.launch import Launch, spawn
from tracelake.lite.log_files import last_lines, rotate_log
from tracelake.runtime.disk import is_full
from tracelake.settings import UpSettings

State = Literal["waiting", "starting", "ready", "restarting", "held back", "stopping", "stopped", "failed"]

FAILURES_BEFORE_HELD_BACK = 3
"""A child that ended so often in a row is `held back`: it is started again after growing waits, and no start waits
for it. Only one that everything else depends on, and that ended by itself, stops the start with its reason."""


@dataclass(frozen=True)
class Child:
    """What to keep alive."""

    name: str
    launch: Callable[[], Launch]
    """Called before each start, off the event loop: it may clean up after the last one."""
    listeners: Sequence[str] = ()
    probe: Callable[[], bool] | None = None
    """For a child that does not speak the notify protocol: does it answer?"""
    stop_signal: signal.Signals = signal.SIGTERM
    essential: bool = False
    """Nothing can serve without it: if it ends by itself again and again before it was ever ready, `start` raises."""


@dataclass(frozen=True)
class Seen:
    """How a child is, as `trace status` shows it."""

    name: str
    state: State = "waiting"
    pid: int | None = None
    since: float = 0.0
    restarts: int = 0
    listeners: Sequence[str] = ()
    status: str = ""


class Supervisor:
    """Use as: `start` each stage in order, `wait`, `stop`. `changed` is called whenever a child's state does."""

    def __init__(self, settings: UpSettings, logs: Path, sockets: Path, changed: Callable[[Seen], None]) -> None:
        self._settings = settings
        self._logs = logs
        self._sockets = sockets
        self._changed = changed
        self._stages: list[list[_SupervisedChild]] = []
        self._ahead: list[_SupervisedChild] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._chores: list[asyncio.Task[None]] = []

    @property
    def seen(self) -> list[Seen]:
        return [kept.seen for kept in self._kept]

    @property
    def _kept(self) -> list[_SupervisedChild]:
        return [kept for stage in [*self._stages, self._ahead] for kept in stage]

    async def start(self, stage: Sequence[Child], *, ahead: bool = False) -> None:
        """Start them together and return when each is ready or held back; raises if an essential one cannot start.

        Those that go `ahead` of what they stand on are stopped as if they had come last.
        """
        self._ensure_guard()
        fresh = [_SupervisedChild(child, self) for child in stage]
        if ahead:
            self._ahead += fresh
        else:
            self._stages.append(fresh)
        for kept in fresh:
            kept.begin()
        try:
            await asyncio.gather(*(kept.first_ready for kept in fresh))
        except SetupError:
            for kept in fresh:
                kept.first_ready.cancel()
            raise

    async def stop(self) -> None:
        """The last started is the first stopped; a family that does not end in time is killed."""
        for chore in self._chores:
            chore.cancel()
        *before, last = self._stages or [[]]
        for stage in ([*last, *self._ahead], *reversed(before)):
            await asyncio.gather(*(kept.end() for kept in stage))
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait()

    def watch(self) -> None:
        """Begin the chores of a long run: logs that grow, a guard that was killed."""
        self._chores.append(asyncio.create_task(self._do_chores()))

    # What children call.

    def enlist(self, session: int) -> None:
        self._tell_guard(session)

    def dismiss(self, session: int) -> None:
        self._tell_guard(-session)

    def report(self, seen: Seen) -> None:
        self._changed(seen)

    def log_of(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    @property
    def sockets(self) -> Path:
        return self._sockets

    @property
    def settings(self) -> UpSettings:
        return self._settings

    async def _do_chores(self) -> None:
        while True:
            await asyncio.sleep(5)
            self._ensure_guard()
            for kept in self._kept:
                rotate_log(self.log_of(kept.child.name), self._settings.log_megabytes)

    def _ensure_guard(self) -> None:
        if self._guard is not None and self._guard.poll() is None:
            return
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "tracelake.lite.end_orphans"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for kept in self._kept:
            if kept.seen.pid is not None:
                self._tell_guard(kept.seen.pid)

    def _tell_guard(self, session: int) -> None:
        guard = self._guard
        if guard is None or guard.stdin is None:
            return
        try:
            guard.stdin.write(f"{session}\n".encode())
            guard.stdin.flush()
        except BrokenPipeError:
            pass  # it was killed; the next chore starts another and tells it everything


class _SupervisedChild:
    """One child through all its lives."""

    def __init__(self, child: Child, supervisor: Supervisor) -> None:
        self.child = child
        self.seen = Seen(child.name, listeners=child.listeners)
        self.first_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervisor = supervisor
        self._stopping = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = _ReportedState()
        self._lives: asyncio.Task[None] | None = None
        self._failures = 0
        self._ended_by_itself = True

    def begin(self) -> None:
        self._lives = asyncio.create_task(self._live())

    async def end(self) -> None:
        self._stopping.set()
        if self._lives is not None:
            await asyncio.gather(self._lives, return_exceptions=True)
        self._see("stopped", pid=None, status="")

    async def _live(self) -> None:
        while not self._stopping.is_set():
            reason = await self._one_life()
            if self._stopping.is_set():
                return
            restarts = self.seen.restarts + 1
            if self._failures < FAILURES_BEFORE_HELD_BACK:
                self._see("restarting", pid=None, status=reason, restarts=restarts)
            elif self.child.essential and self._ended_by_itself and not self.first_ready.done():
                self._see("failed", pid=None, status=reason, restarts=restarts)
                self.first_ready.set_exception(self._cannot_start(reason))
                return
            else:
                self._see("held back", pid=None, status=self._held_back_because(reason), restarts=restarts)
                if not self.child.essential and not self.first_ready.done():
                    self.first_ready.set_result(None)
            await _unless_set(self._stopping, self._backoff())

    async def _one_life(self) -> str:
        """From start to end; the answer says why it ended."""
        self._see("starting", status="", since=time.time())
        self._ended_by_itself = True
        try:
            launch = await asyncio.to_thread(self.child.launch)
            with self._listening():
                return await self._spawned(launch)
        except (SetupError, OSError) as wrong:
            self._failures += 1
            return f"cannot be started: {wrong}"

    async def _spawned(self, launch: Launch) -> str:
        process = self._spawn(launch)
        try:
            return await self._watch(process)
        finally:
            end_sessions({process.pid})  # what it left behind, before another is started
            self._supervisor.dismiss(process.pid)

    def _spawn(self, launch: Launch) -> subprocess.Popen[bytes]:
        notify = {
            "NOTIFY_SOCKET": str(self._channel_path()),
            "WATCHDOG_USEC": str(int(self._supervisor.settings.watchdog_seconds * 1e6)),
        }
        env = launch.env if self.child.probe else {**launch.env, **notify}
        with self._supervisor.log_of(self.child.name).open("ab") as log:
            self._process = spawn(replace(launch, env=env), log)
        self._supervisor.enlist(self._process.pid)
        self._see("starting", pid=self._process.pid)
        return self._process

    async def _watch(self, process: subprocess.Popen[bytes]) -> str:
        ended = asyncio.create_task(_exit_of(process))
        started = time.monotonic()
        reason = ""
        while not ended.done():
            await self._news(ended)
            if ended.done():
                break
            if self._stopping.is_set():
                await self._wait_for_stop(process, ended)
                break
            if self._heard.ready and self.seen.state != "ready":
                self._be_ready()
            if self.seen.status != self._heard.status:
                self._see(self.seen.state, status=self._heard.status)
            reason = self._overdue(started)
            if reason:
                process.kill()
                await ended
        if time.monotonic() - started > self._supervisor.settings.steady_seconds:
            self._failures = 0
        self._failures += 1
        self._ended_by_itself = bool(reason) or process.returncode >= 0
        return reason or _how_it_ended(process.returncode)

    async def _news(self, ended: asyncio.Task[None]) -> None:
        """Until it ends, says something, is to stop, or it is time to ask the probe, off the loop."""
        stopping = asyncio.create_task(self._stopping.wait())
        heard = asyncio.create_task(self._heard.event.wait())
        done, _ = await asyncio.wait(
            {ended, stopping, heard}, timeout=self._pause(), return_when=asyncio.FIRST_COMPLETED
        )
        stopping.cancel()
        heard.cancel()
        self._heard.event.clear()
        if self.child.probe and not done and await asyncio.to_thread(self.child.probe):
            self._heard.take("READY=1\nWATCHDOG=1")

    def _pause(self) -> float:
        """A probe is a new connection: often while a start waits for it, then as often as the watchdog needs."""
        if not self.child.probe:
            return 1.0
        return min(5.0, self._supervisor.settings.watchdog_seconds / 3) if self._heard.ready else 0.05

    def _overdue(self, started: float) -> str:
        settings = self._supervisor.settings
        now = time.monotonic()
        if not self._heard.ready and now - started > settings.start_seconds:
            return f"was not ready after {settings.start_seconds:.0f} s"
        if self._heard.ready and now - self._heard.last > settings.watchdog_seconds:
            return f"gave no sign of life for {settings.watchdog_seconds:.0f} s"
        return ""

    async def _wait_for_stop(self, process: subprocess.Popen[bytes], ended: asyncio.Task[None]) -> None:
        """The signal once: who hears it twice takes it that we are in a hurry, and drops what it has in hand."""
        if process.poll() is None:
            self._see("stopping", status="")
            process.send_signal(self.child.stop_signal)
        done, _ = await asyncio.wait({ended}, timeout=self._supervisor.settings.stop_seconds)
        if not done:
            process.kill()
            await ended

    def _be_ready(self) -> None:
        self._see("ready", status=self._heard.status)
        if not self.first_ready.done():
            self.first_ready.set_result(None)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """What it says from now on is heard."""
        self._heard = _ReportedState()
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
        heard = self._heard

        def read() -> None:
            heard.take(channel.recv(4096).decode(errors="replace"))

        asyncio.get_running_loop().add_reader(channel, read)
        return channel

    def _channel_path(self) -> Path:
        return self._supervisor.sockets / "notify" / self.child.name

    def _backoff(self) -> float:
        settings = self._supervisor.settings
        return float(min(settings.backoff_seconds * 2 ** (self._failures - 1), settings.backoff_max_seconds))

    def _held_back_because(self, reason: str) -> str:
        again = time.strftime("%H:%M:%S", time.localtime(time.time() + self._backoff()))
        last = last_lines(self._supervisor.log_of(self.child.name), 1)
        logged = f"; its log ends: {last}" if last else ""
        if is_full(self._supervisor.log_of(self.child.name).parent):
            logged = "; the disk of the home folder is full: free space there"
        return f"{reason}, {self._failures} times in a row; next start at {again}{logged}"

    def _cannot_start(self, reason: str) -> SetupError:
        log = self._supervisor.log_of(self.child.name)
        return SetupError(
            f"{self.child.name} does not start: {reason}", where=str(log), hint=last_lines(log, 3) or "read that log"
        )

    def _see(self, state: State, **changes: object) -> None:
        fresh = replace(self.seen, state=state, **changes)  # type: ignore[arg-type]
        if fresh != self.seen:
            self.seen = fresh
            self._supervisor.report(fresh)


@dataclass
class _ReportedState:
    """What a child has said since it started."""

    ready: bool = False
    status: str = ""
    last: float = field(default_factory=time.monotonic)
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, message: str) -> None:
        self.last = time.monotonic()
        for line in message.splitlines():
            key, _, value = line.partition("=")
            if key == "READY":
                self.ready = True
            elif key == "STATUS":
                self.status = value
        self.event.set()


async def _exit_of(process: subprocess.Popen[bytes]) -> None:
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    handle = os.pidfd_open(process.pid)
    loop.add_reader(handle, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    process.wait()


async def _unless_set(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
