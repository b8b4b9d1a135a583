"""Starts, measures and kills one sandbox.

It depends on this process in three ways: the kernel kills it when we die, we serve its sockets, and we read its output.
Killing its first process makes the kernel kill the rest.

While the isolation is being set up the kernel does not do that yet: if we are killed then, its first process waits for
ever. Until then it therefore stays in our session, where the supervisor finds it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tracelake.errors import SetupError
from tracelake.sandbox.bubblewrap import Isolation, options_pipe, pipe_with
from tracelake.sandbox.cgroup import Cgroup
from tracelake.sandbox.contents import interpreter
from tracelake.sandbox.seccomp import program

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
TICKS: Final = os.sysconf("SC_CLK_TCK")
KILL_LOOK_SECONDS: Final = 0.002
MOST_COUNTED: Final = 8192
"""More than any sandbox may have: counting stops here."""


@dataclass(frozen=True)
class ResourceUsage:
    """The sum over all processes of a sandbox. Shared pages are counted for each process."""

    memory_bytes: int
    processes: int
    threads: int


@dataclass(frozen=True)
class SandboxLaunch:
    """How one sandbox is started."""

    init: str
    """The path of `sandbox/init.py`, as the sandbox sees it."""
    arguments: Mapping[str, Any]
    """Those of its `main`, but for the uid."""
    mounts: Sequence[str] = ()
    """Bubblewrap's options for its content."""
    inherited: tuple[int, ...] = ()
    """Open files that it gets, under the same numbers."""
    folder: str = "/"
    """Where it works without isolation."""
    cgroup: Cgroup | None = None
    """The group that limits all its processes."""


class Sandbox:
    """A running sandbox, made by `start`."""

    def __init__(
        self, process: asyncio.subprocess.Process, first: int, output: int, isolation: Isolation, uid: int
    ) -> None:
        self.output = output
        """The non-blocking pipe with its output; the caller reads and closes it."""
        self._process = process
        self._first = first
        self._isolation = isolation
        self._uid = uid
        self._ended = asyncio.create_task(self._until_gone())

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def usage(self) -> ResourceUsage:
        memory = threads = 0
        members = process_tree(self._first)
        for pid in members:
            with suppress(OSError, IndexError, ValueError):
                memory += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
                threads += len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - it is asked often
        return ResourceUsage(memory, len(members), threads)

    def processor_seconds(self) -> float:
        """Of all its processes since they started."""
        return sum(map(_processor_seconds, self.pids()))

    def pids(self) -> list[int]:
        return process_tree(self._first)

    def files_in_tmp(self) -> int:
        """Bubblewrap limits the bytes of a tmpfs, but not its inodes, each of which costs kernel memory."""
        if self._isolation.bwrap is None:
            return 0
        with suppress(OSError):
            found = os.statvfs(f"/proc/{self._first}/root/tmp")
            return found.f_files - found.f_ffree
        return 0

    def own_memory(self) -> int:
        """Counts shared pages once. It is slower than `usage`."""
        return sum(map(_proportional, process_tree(self._first)))

    async def until_ended(self) -> None:
        await asyncio.shield(self._ended)

    async def kill(self) -> None:
        """Returns when none of its processes is left."""
        if self._isolation.bwrap is None:
            self._kill_group()
        for pid in (self._first, self._process.pid):
            if self.alive:  # neither pid is reused before we have waited for the process
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await self.until_ended()

    def _kill_group(self) -> None:
        """Without isolation this is all: a process that left the group survives."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _until_gone(self) -> None:
        try:
            await self._process.wait()
            if self._isolation.bwrap is None:
                self._kill_group()
            while self._isolation.bwrap is not None and runs(self._first):  # noqa: ASYNC110 - the kernel does not notify
                await asyncio.sleep(KILL_LOOK_SECONDS)
        finally:
            self._isolation.give_back(self._uid)


async def start(launch: SandboxLaunch, isolation: Isolation) -> Sandbox:
    """Call it in the main thread: it dies with its thread."""
    uid = isolation.take_uid()
    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        document = json.dumps({**launch.arguments, "uid": uid})
        if isolation.bwrap is None:
            process, first = await _start_without_isolation(launch, document, write)
        else:
            process, first = await _start_isolated(isolation, launch, document, write)
    except BaseException:
        os.close(read)
        isolation.give_back(uid)
        raise
    finally:
        os.close(write)
    return Sandbox(process, first, read, isolation, uid)


def _proportional(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _processor_seconds(pid: int) -> float:
    with suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def runs(pid: int) -> bool:
    """False for a zombie. A sandbox's first process ends after all others."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def process_tree(first: int) -> list[int]:
    """A process and its descendants, up to a bound. In a sandbox the first process adopts orphans."""
    found: list[int] = []
    look = [first]
    while look and len(found) < MOST_COUNTED:
        pid = look.pop()
        found.append(pid)
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - it is asked often
                look += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


async def _start_isolated(
    isolation: Isolation, launch: SandboxLaunch, document: str, out: int
) -> tuple[asyncio.subprocess.Process, int]:
    with ExitStack() as stack:
        options, _ = stack.enter_context(options_pipe([*isolation.options, *launch.mounts]))
        seccomp = stack.enter_context(pipe_with(program()))
        info, info_write = os.pipe()
        stack.callback(os.close, info)
        argv = [
            str(isolation.bwrap),
            "--args",
            str(options),
            "--seccomp",
            str(seccomp),
            "--info-fd",
            str(info_write),
            "--",
        ]
        argv += [interpreter(), "-I", "-S", launch.init, document]
        try:
            files = (options, seccomp, info_write, *isolation.open_files, *launch.inherited)
            entrances = launch.cgroup.entrances() if launch.cgroup is not None else []
            for entrance in entrances:
                stack.callback(os.close, entrance)
            process = await _spawn(argv, out, "/", pass_fds=files, preexec_fn=partial(_apart, entrances))
        finally:
            os.close(info_write)
        answer = await asyncio.to_thread(_read_all, info)
        if not answer:
            await process.wait()
            raise SetupError("a sandbox did not start", hint="`trace doctor` shows what is missing")
        return process, json.loads(answer)["child-pid"]


def _apart(cgroup: Sequence[int]) -> None:
    """In its own process group, so that Ctrl-C does not reach it (uvloop has no `process_group`), and in its cgroup."""
    os.setpgrp()
    for entrance in cgroup:
        os.write(entrance, b"0")


async def _start_without_isolation(
    launch: SandboxLaunch, document: str, out: int
) -> tuple[asyncio.subprocess.Process, int]:
    argv = [interpreter(), "-I", "-S", launch.init, document]
    process = await _spawn(argv, out, launch.folder, pass_fds=launch.inherited, start_new_session=True)
    return process, process.pid


async def _spawn(argv: list[str], out: int, folder: str, **more: Any) -> asyncio.subprocess.Process:
    """With an empty environment: the sandbox can read that of its first process."""
    return await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, env={}, cwd=folder, **more
    )


def _read_all(file: int) -> bytes:
    found = b""
    while more := os.read(file, 4096):
        found += more
    return found
