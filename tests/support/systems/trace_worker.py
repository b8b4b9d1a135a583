"""`trace worker` as it is started by hand, by settings in its environment alone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support import ROOT
from tests.support.spark.cluster import SECONDS, family_of, kill
from tests.support.systems.walk import TOKEN, Walk


@asynccontextmanager
async def trace_worker(
    walk: Walk, folder: Path, dsns: tuple[str, str], more: Mapping[str, str], *, code: int = 0, log: Path | None = None
) -> AsyncIterator[int]:
    """Its process id; `dsns` are the queue's and the data database; what it says is in `log`, if that is given.

    At the end it is asked to stop, and has stopped in good order; with `code`, it has ended by itself.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "TRACE_HOME": str(folder / "worker"),
        "TRACE_QUEUE__DSN": dsns[0],
        "TRACE_DATA__DSN": dsns[1],
        "TRACE_OBJECTS__FOLDER": str(folder / "objects"),
        "TRACE_WORKER__FILES_FOLDER": str(folder / "files"),
        "TRACE_IDENTITY__WORKER_TOKEN": TOKEN,
        "TRACE_ENDPOINTS__DISPATCHER_TASK": walk.listeners["dispatcher_task"],
        "TRACE_ENDPOINTS__DISPATCHER_INTERNAL": walk.listeners["dispatcher_internal"],
        "TRACE_TLS__CA": str(walk.ca),
        **more,
    }
    said = log.open("wb") if log else None
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tracelake", "worker"), cwd=folder, env=environment, stdout=said, stderr=said
    )
    family = family_of(worker.pid)
    try:
        yield worker.pid
        family = family_of(worker.pid)
        if not code:
            worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            assert await worker.wait() == code
    finally:
        kill(family_of(worker.pid) + family)
        await worker.wait()
        if said:
            said.close()
