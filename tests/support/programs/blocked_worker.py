"""A worker process with Spark, whose tasks all block at a critical moment until it is killed.

In the middle: a first file is written, and the Spark tasks that write it and the others block.
At the end: everything is written but the marker, or a first batch is published and the next is not.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import psutil

from tests.support.child_process import running_program
from tests.support.identity.service_tokens import as_service
from tests.support.spark.session import a_session
from tests.support.systems.walk import Walk
from tests.support.tls import https
from tests.support.waiting import SECONDS
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.adapters.pg.queue import PgQueue
from tracelake.dispatcher.maintenance.delete_orphan_files import DeleteOrphanFiles
from tracelake.domain.access.object_names import ObjectName
from tracelake.operators.api.context import Resources
from tracelake.settings import RpcPoolSettings
from tracelake.wire.client import DispatcherClient, TaskClient
from tracelake.wire.task.buffers import BufferPublishAnswer, BufferPublishRequest
from tracelake.wire.task.markers import MARKER
from tracelake.worker.process import pool_of
from tracelake.worker.run_task import Runner
from tracelake.worker.wrapper import Wrapper

MOST = 24
"""How many tasks, and Spark tasks, may be blocked at once."""


class Holding(DiskObjects):
    """Notes blocked tasks as empty files beside the store: executors have no other way."""

    def hold(self, name: ObjectName) -> NoReturn:
        (held_in(self.root.parent) / attempt_of(name)).touch()
        threading.Event().wait()
        raise AssertionError("it was to be killed")


class InTheMiddle(Holding):
    """One file of an attempt is put, and no other. Sent to the executors."""

    def put(self, name: ObjectName, body: bytes | memoryview, *, replace: bool = False) -> None:
        first = held_in(self.root.parent) / f"first {attempt_of(name)}"
        try:
            first.touch(exist_ok=False)
        except FileExistsError:
            threading.Event().wait()
        super().put(name, body, replace=replace)
        self.hold(name)


class AtTheEnd(Holding):
    """Every file is put, but no marker."""

    def put(self, name: ObjectName, body: bytes | memoryview, *, replace: bool = False) -> None:
        if name.name == MARKER:
            self.hold(name)
        super().put(name, body, replace=replace)


HOW = {"in the middle": InTheMiddle, "at the end": AtTheEnd}


class OnePublish(TaskClient):
    """A task's first batch is published, but it never gets the answer."""

    held: Path

    async def publish_buffer(self, token: str, request: BufferPublishRequest) -> BufferPublishAnswer:
        await super().publish_buffer(token, request)
        (self.held / f"{request.task_id}.{request.attempt}").touch()
        await asyncio.Event().wait()
        raise AssertionError("it was to be killed")


def held_in(folder: Path) -> Path:
    return folder / "held"


def attempt_of(name: ObjectName) -> str:
    """The end of the folder's name, of an output or of batches."""
    return ".".join(name.segments[-3:-1])


@asynccontextmanager
async def blocked_worker(given: dict[str, Any]) -> AsyncIterator[None]:
    """Start a process with these resources; it is killed at the end of the block.

    Its child processes then end by themselves, and write nothing more.
    """
    async with running_program("blocked_worker", given=given) as worker:
        assert worker.stdout is not None
        async with asyncio.timeout(SECONDS):
            while (message := await worker.stdout.readline()) != b"ready\n":
                assert message, "the worker has ended"
        yield
        left = psutil.Process(worker.pid).children(recursive=True)
    _, alive = await asyncio.to_thread(psutil.wait_procs, left, timeout=SECONDS)
    assert alive == []


def event_status(walk: Walk, queue_db: str, folder: Path, **more: Any) -> dict[str, Any]:
    """What a worker that is killed needs to run beside the workers of a test system whose files are in `folder`."""
    return {
        "queue": queue_db,
        "internal": walk.listeners["dispatcher_internal"],
        "task": walk.listeners["dispatcher_task"],
        "ca": str(walk.ca),
        "folder": str(folder),
        **more,
    }


def files_of(folder: Path, task: Any, attempt: int) -> list[str]:
    """The files in an attempt's folders, of outputs and of batches."""
    return [path.name for path in (folder / "objects").glob(f"**/{task}/{attempt}/*") if path.is_file()]


async def swept(walk: Walk) -> None:
    """Run the deletion of orphan files everywhere, without a grace period."""
    for _ in range(10):  # while the Dispatcher's own runs, another does nothing
        while await DeleteOrphanFiles(
            walk.control.pool, walk.control.objects, walk.control.places.scratch_bucket, grace=timedelta(0)
        ).once():
            pass
        await asyncio.sleep(0.05)


async def main(given: dict[str, Any]) -> None:
    folder = Path(given["folder"])
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MOST))
    with a_session(folder / given["hold"], MOST) as spark:
        async with (
            https(given["internal"], given["ca"], headers=as_service("worker")) as internal,
            https(given["task"], given["ca"]) as task,
        ):
            pools = {name: pool_of(name, RpcPoolSettings(**pool)) for name, pool in given["pools"].items()}
            resources = Resources(given["data"], pools, folder=folder / "files")
            tasks = OnePublish(task)
            tasks.held = held_in(folder)
            runner = Runner(HOW[given["hold"]](folder / "objects"), resources, spark)
            queue = PgQueue(given["queue"])
            wrapper = Wrapper(queue, "tasks-ecs_platform", DispatcherClient(internal), tasks, runner, "victim", MOST)
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await wrapper.work(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.stdin.readline())))
