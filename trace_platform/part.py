"""One part of Trace as a process: its settings, and what they choose for it.

`trace up` starts the parts with their settings on standard input. They do without the command line then (see
`__main__.py`): to load it would be a third of a part's start.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

from trace_platform.process import Process, run_process
from trace_platform.settings import Settings, settings_from_document

if TYPE_CHECKING:
    from trace_platform.client import DispatcherClient, TaskClient
    from trace_platform.worker.run_udf import RunsFunctions

ROOM_OF: Final = {"runner": "udf"}
SANDBOXES: Final = "ecs_udf"


def run_as_told(name: str) -> NoReturn:
    """With the settings that stand on standard input, and nothing from elsewhere."""
    run_with(name, settings_from_document(sys.stdin.read()))


def run_with(name: str, settings: Settings) -> NoReturn:
    if name == "dispatcher":
        # It alone holds the state database's address: nobody of the same user reads it out of our memory.
        from trace_platform.lite.launch import hide_memory

        hide_memory()
    sys.exit(run_process(name, settings, _wired(name)))


def _wired(name: str) -> Callable[[Process], Awaitable[None]]:
    """The process's main function, with the ports that its settings choose."""
    main: Callable[..., Awaitable[None]] = import_module(f"trace_platform.{ROOM_OF.get(name, name)}.process").main

    async def with_ports(process: Process) -> None:
        from trace_platform.wiring import (
            make_minter,
            make_objects,
            make_signer,
            open_invoker,
            open_queue,
            session_objects,
        )

        settings = process.settings
        if name == "query":
            await main(process, make_objects(settings))
        elif name == "runner":
            await main(process, make_objects(settings), session_objects, _take_udf_tasks)
        elif name == "dispatcher":
            async with open_queue(settings) as queue, open_invoker(settings) as invoker:
                signer, minter = make_signer(settings), make_minter(settings)
                await main(process, queue, signer, make_objects(settings), minter, invoker=invoker)
        else:
            async with open_queue(settings) as queue:
                await main(process, queue, make_objects(settings))

    return with_ports if name in {"dispatcher", "worker", "sink", "query", "runner"} else main


async def _take_udf_tasks(
    process: Process, functions: RunsFunctions, dispatcher: DispatcherClient, tasks: TaskClient
) -> None:
    """Tasks of `ecs_udf`, until the process is told to stop: the workers' wrapper, with sandboxes in Spark's place."""
    from trace_platform.wiring import open_queue
    from trace_platform.worker.run_udf import SandboxRunner
    from trace_platform.worker.wrapper import Wrapper

    settings = process.settings
    name = settings.runtimes[SANDBOXES].queue if SANDBOXES in settings.runtimes else None
    if name is None or settings.queue.dsn is None:
        return
    async with open_queue(settings) as queue:
        wrapper = Wrapper(
            queue=queue,
            queue_name=name,
            dispatcher=dispatcher,
            tasks=tasks,
            runner=SandboxRunner(functions, tasks, asyncio.get_running_loop()),
            worker_id=f"runner {socket.gethostname()}:{os.getpid()}",
            concurrency=settings.udf.tasks,
            metrics=process.metrics,
        )
        await wrapper.work(process.stop)
