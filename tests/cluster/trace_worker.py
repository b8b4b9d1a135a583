"""`trace worker` as it is started by hand, by settings in its environment alone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.elsewhere import SECONDS, family_of, kill
from tests.walk.walking import TOKEN, Walk

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def trace_worker(walk: Walk, folder: Path, queue_db: str, data_db: str, **more: str) -> AsyncIterator[int]:
    """Its process id. At the end it is asked to stop, and has stopped in good order."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "TRACE_HOME": str(folder / "worker"),
        "TRACE_QUEUE__DSN": queue_db,
        "TRACE_DATA__DSN": data_db,
        "TRACE_OBJECTS__FOLDER": str(folder / "objects"),
        "TRACE_WORKER__FILES_FOLDER": str(folder / "files"),
        "TRACE_IDENTITY__WORKER_TOKEN": TOKEN,
        "TRACE_ENDPOINTS__DISPATCHER_TASK": walk.doors["dispatcher_task"],
        "TRACE_ENDPOINTS__DISPATCHER_INTERNAL": walk.doors["dispatcher_internal"],
        "TRACE_TLS__CA": str(walk.ca),
        **more,
    }
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trace_platform", "worker"), cwd=folder, env=environment
    )
    family = family_of(worker.pid)
    try:
        yield worker.pid
        family = family_of(worker.pid)
        worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            assert await worker.wait() == 0
    finally:
        kill(family_of(worker.pid) + family)
        await worker.wait()
