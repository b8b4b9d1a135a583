"""A worker in a process of its own that stops at the worst moment: everything written, the marker about to be put."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from tests.spark_session import a_session
from tests.walk.walking import TOKEN, Walk
from trace_platform.adapters.objects_disk import DiskObjects
from trace_platform.adapters.queue_pg import PgQueue
from trace_platform.client import DispatcherClient, TaskClient
from trace_platform.dispatcher.loops.janitor import Janitor
from trace_platform.domain.objects import ObjectName
from trace_platform.markers import MARKER
from trace_platform.operators.context import Resources
from trace_platform.settings import RpcPoolSettings
from trace_platform.worker.process import pool_of
from trace_platform.worker.run_task import Runner
from trace_platform.worker.wrapper import Wrapper

ROOT = Path(__file__).parents[2]


class Holding(DiskObjects):
    """Says when a marker would be put, and never puts it."""

    def put(self, name: ObjectName, body: bytes | memoryview, *, replace: bool = False) -> None:
        if name.name == MARKER:
            sys.stdout.write(f"held {name.key}\n")
            sys.stdout.flush()
            threading.Event().wait()
        super().put(name, body, replace=replace)


@asynccontextmanager
async def a_victim(given: dict[str, Any]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of its own with these resources, ready to work; killed when the block is left."""
    victim = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.operators.victim"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert victim.stdin is not None
        victim.stdin.write(json.dumps(given).encode() + b"\n")
        await victim.stdin.drain()
        await heard(victim, "ready")
        yield victim
    finally:
        victim.kill()
        await victim.wait()


def told_of(walk: Walk, queue_db: str, folder: Path, **more: Any) -> dict[str, Any]:
    """What a victim has to know to work beside the workers of a walk whose files are in `folder`."""
    return {
        "queue": queue_db,
        "internal": walk.doors["dispatcher_internal"],
        "task": walk.doors["dispatcher_task"],
        "ca": str(walk.ca),
        "token": TOKEN,
        "objects": str(folder / "objects"),
        "files": str(folder / "files"),
        "home": str(folder / "victim"),
        **more,
    }


def files_in(folder: Path, attempt: Path) -> list[Path]:
    """What lies in an attempt's folder, named as the object store does."""
    return [file for file in (folder / "objects").glob(f"*/{attempt}/*") if file.is_file()]


async def swept(walk: Walk) -> None:
    """The janitor has been everywhere, without waiting for anybody who might still write."""
    for _ in range(10):  # while the Dispatcher's own is at it, another finds nothing to do
        while await Janitor(walk.control, grace=timedelta(0)).once():
            pass
        await asyncio.sleep(0.05)


async def heard(victim: asyncio.subprocess.Process, word: str, times: int = 1) -> list[str]:
    """What it said after the word."""
    assert victim.stdout is not None
    said: list[str] = []
    while len(said) < times:
        line = (await victim.stdout.readline()).decode()
        assert line, "the victim has ended"
        first, _, rest = line.strip().partition(" ")
        said += [rest] if first == word else []
    return said


async def main(given: dict[str, Any]) -> None:
    context = ssl.create_default_context(cafile=given["ca"])
    folder, home = Path(given["files"]), Path(given["home"])
    queue = PgQueue(given["queue"])
    with a_session(home) as spark:
        async with (
            httpx.AsyncClient(
                base_url=given["internal"], headers={"X-Trace-Worker-Token": given["token"]}, verify=context
            ) as internal,
            httpx.AsyncClient(base_url=given["task"], verify=context) as task,
        ):
            pools = {name: pool_of(name, RpcPoolSettings(**pool)) for name, pool in given.get("pools", {}).items()}
            resources = Resources(given.get("data", ""), pools, folder=folder)
            runner = Runner(Holding(Path(given["objects"])), resources, spark)
            wrapper = Wrapper(
                queue, "tasks-ecs_platform", DispatcherClient(internal), TaskClient(task), runner, "victim", 8
            )
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await wrapper.work(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.stdin.readline())))
