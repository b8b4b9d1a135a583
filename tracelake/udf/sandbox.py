"""One sandbox: started, looked at, ended. What it is furnished with stands in `udf/sandbox_contents.py`.

It hangs on this process by three strings: the kernel ends it when we die, its sockets lead to us, and its output is a
pipe of ours. To end it is to kill its first process, and the kernel kills the rest.

While its isolation is being set up the kernel does not do that yet: if we are killed then, its first process waits for
ever. Until then it therefore stays in our session, where our supervisor finds it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tracelake.errors import SetupError
from tracelake.settings import UdfSettings
from tracelake.udf.bubblewrap import Isolation, handed_over, handed_over_bytes
from tracelake.udf.sandbox_contents import WITHIN, Code, Place, interpreter, mounts, told, without_isolation
from tracelake.udf.seccomp import program

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
KILL_LOOK_SECONDS: Final = 0.002
MOST_COUNTED: Final = 8192
"""More than any sandbox may have: whoever has so many is ended, and need not be counted to the end."""


@dataclass(frozen=True)
class Usage:
    """Of all processes of a sandbox together. Pages that several share are counted for each."""

    memory_bytes: int
    processes: int
    threads: int


class Sandbox:
    """A running one. Made by `start`."""

    def __init__(
        self, process: asyncio.subprocess.Process, first: int, output: int, isolation: Isolation, uid: int
    ) -> None:
        self.output = output
        """What its processes write, to be read, and closed, by whoever started it; not blocking."""
        self._process = process
        self._first = first
        self._walls = isolation
        self._uid = uid
        self._ended = asyncio.create_task(self._until_gone())

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def usage(self) -> Usage:
        memory = threads = 0
        members = family(self._first)
        for pid in members:
            with suppress(OSError, IndexError, ValueError):
                memory += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
                threads += len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - it is asked often
        return Usage(memory, len(members), threads)

    def files_in_tmp(self) -> int:
        """Bubblewrap bounds the bytes of a tmpfs and not its inodes, each of which costs the kernel memory."""
        if self._walls.bwrap is None:
            return 0
        with suppress(OSError):
            found = os.statvfs(f"/proc/{self._first}/root/tmp")
            return found.f_files - found.f_ffree
        return 0

    def own_memory(self) -> int:
        """Pages that several share counted once: dearer to ask, so only asked by who has reason to."""
        return sum(map(_proportional, family(self._first)))

    async def until_ended(self) -> None:
        await asyncio.shield(self._ended)

    async def kill(self) -> None:
        """Returns when none of its processes is left."""
        if self._walls.bwrap is None:
            self._kill_group()
        for pid in (self._first, self._process.pid):
            if self.alive:  # neither number can be another's as long as we have not buried it
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await self.until_ended()

    def _kill_group(self) -> None:
        """Without isolation there is only this: what left the group by itself goes on."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _until_gone(self) -> None:
        try:
            await self._process.wait()
            if self._walls.bwrap is None:
                self._kill_group()
            while self._walls.bwrap is not None and runs(self._first):  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(KILL_LOOK_SECONDS)
        finally:
            self._walls.give_back(self._uid)


async def start(code: Code, sockets: Path, etc: Path, isolation: Isolation, settings: UdfSettings) -> Sandbox:
    """`sockets`: a folder with one for each door. Must be called in the thread that lives as long as we do."""
    place = WITHIN if isolation.bwrap else without_isolation(code, sockets)
    uid = isolation.take_uid()
    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        said = json.dumps(told(code, place, uid, settings))
        if isolation.bwrap is None:
            process, first = await _unwalled(place, said, write)
        else:
            process, first = await _walled(isolation, mounts(code, sockets, etc, settings), said, write)
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


def runs(pid: int) -> bool:
    """One that has ended and is not buried yet does not. A sandbox's first process ends after all others."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def family(first: int) -> list[int]:
    """A process and all that descend from it, up to a bound. In a sandbox orphans become the first one's."""
    found: list[int] = []
    look = [first]
    while look and len(found) < MOST_COUNTED:
        pid = look.pop()
        found.append(pid)
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - it is asked often
                look += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


async def _walled(
    isolation: Isolation, furniture: list[str], said: str, out: int
) -> tuple[asyncio.subprocess.Process, int]:
    with ExitStack() as held:
        options, _ = held.enter_context(handed_over([*isolation.alone, *furniture]))
        seccomp = held.enter_context(handed_over_bytes(program()))
        info, tell = os.pipe()
        held.callback(os.close, info)
        argv = [str(isolation.bwrap), "--args", str(options), "--seccomp", str(seccomp), "--info-fd", str(tell), "--"]
        argv += [interpreter(), "-I", "-S", f"{WITHIN.ours}/sandbox_init.py", said]
        try:
            files = (options, seccomp, tell, *isolation.open_files)
            # A group of its own, so that Ctrl-C in a terminal is not for it. (uvloop knows no `process_group`.)
            process = await _spawn(argv, out, "/", pass_fds=files, preexec_fn=os.setpgrp)
        finally:
            os.close(tell)
        answer = await asyncio.to_thread(_read_all, info)
        if not answer:
            await process.wait()
            raise SetupError("a sandbox did not start", hint="`trace doctor` says what is missing")
        return process, json.loads(answer)["child-pid"]


async def _unwalled(place: Place, said: str, out: int) -> tuple[asyncio.subprocess.Process, int]:
    argv = [interpreter(), "-I", "-S", f"{place.ours}/sandbox_init.py", said]
    process = await _spawn(argv, out, place.task_root, start_new_session=True)
    return process, process.pid


async def _spawn(argv: list[str], out: int, folder: str, **more: Any) -> asyncio.subprocess.Process:
    """With an empty environment: the first process's can be read in the sandbox."""
    return await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, env={}, cwd=folder, **more
    )


def _read_all(file: int) -> bytes:
    found = b""
    while more := os.read(file, 4096):
        found += more
    return found
