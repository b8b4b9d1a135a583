"""Child processes of tests: a `trace` process with its settings, and the programs of `tests/support/programs`.

Each is killed at the end of its block, whatever happened in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.support import ROOT
from tracelake.lite.child import Child
from tracelake.lite.end_orphans import end_sessions
from tracelake.lite.launch import Launch, spawn
from tracelake.lite.plan import child_environment
from tracelake.settings import Settings, to_document


@contextmanager
def trace_process(
    command: str, settings: Settings, log: Path, module: str = "tracelake"
) -> Iterator[subprocess.Popen[bytes]]:
    """`trace <command>` as `trace up` starts it, and ended as `trace up` ends it: with its session."""
    launch = Launch(
        [sys.executable, "-m", module, command, "--settings", "-"],
        env=child_environment(os.environ) | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=to_document(settings).encode(),
    )
    with log.open("ab") as output:
        process = spawn(launch, output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        end_sessions({process.pid})


def program(name: str, *arguments: str) -> Sequence[str]:
    """The command that runs a program of `tests/support/programs`; it must be started in `ROOT`."""
    return [sys.executable, "-m", f"tests.support.programs.{name}", *arguments]


@asynccontextmanager
async def running_program(name: str, *arguments: str, given: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """With `given` as one line of JSON on its standard input, which stays open."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*program(name, *arguments), cwd=ROOT, stdin=pipe, stdout=pipe)
    try:
        _input(process).write(json.dumps(given).encode() + b"\n")
        await _input(process).drain()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _input(process: asyncio.subprocess.Process) -> Any:
    assert process.stdin is not None
    return process.stdin


def speaking_child(name: str, *, works_until: Path) -> Child:
    """Is ready at once. When it is to end, it works on until that file is there; beside it, it then says so."""
    program = f"""
import os, signal, socket, time
channel, asked = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), []
def notify(text): channel.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
notify("READY=1")
while not asked: notify("WATCHDOG=1"); time.sleep(0.02)
for _ in range(20): notify("WATCHDOG=1"); time.sleep(0.02)
open(os.path.join({str(works_until.parent)!r}, f"drains-{{os.getpid()}}"), "w").close()
while not os.path.exists({str(works_until)!r}): notify("WATCHDOG=1"); time.sleep(0.02)
"""
    launch = Launch([sys.executable, "-c", program], env={"PATH": os.defpath}, cwd=Path("/"), stdin=b"{}")
    return Child(name, lambda: launch)
