"""A worker in a process of its own that stops at the worst moment: everything written, the marker about to be put."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import httpx

from tests.spark_session import a_session
from trace_platform.adapters.objects_disk import DiskObjects
from trace_platform.adapters.queue_pg import PgQueue
from trace_platform.client import DispatcherClient, TaskClient
from trace_platform.domain.objects import ObjectName
from trace_platform.markers import MARKER
from trace_platform.operators.context import Resources
from trace_platform.worker.run_task import Runner
from trace_platform.worker.wrapper import Wrapper


class Holding(DiskObjects):
    """Says when a marker would be put, and never puts it."""

    def put(self, name: ObjectName, body: bytes | memoryview, *, replace: bool = False) -> None:
        if name.name == MARKER:
            sys.stdout.write("held\n")
            sys.stdout.flush()
            threading.Event().wait()
        super().put(name, body, replace=replace)


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
            runner = Runner(Holding(Path(given["objects"])), Resources(folder=folder), spark)
            wrapper = Wrapper(
                queue, "tasks-ecs_platform", DispatcherClient(internal), TaskClient(task), runner, "victim", 8
            )
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await wrapper.work(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.stdin.readline())))
