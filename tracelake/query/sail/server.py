"""One Sail in a sandbox, for one organisation.

It has a user, a network and a file system of its own: the system's libraries, Sail itself, and a folder of staged
files, all read-only. It cannot see processes, and reaches no address. We reach it through a socket that it inherits.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from tracelake.errors import SetupError
from tracelake.ports import ObjectStore
from tracelake.query.sail.connect import ConnectClient
from tracelake.query.sail.staged_files import WITHIN, StagedFiles
from tracelake.sandbox.bubblewrap import Isolation
from tracelake.sandbox.contents import INIT, MIB, closing_mounts, interpreter, system_mounts
from tracelake.sandbox.process import Launch, Sandbox, start
from tracelake.settings import QuerySettings

PORT: Final = 50051
OURS: Final = "/opt/trace"
LIBRARY: Final = f"{OURS}/lib"
START_SECONDS: Final = 20.0
TMP_BYTES: Final = 16 * MIB
RESERVED_BYTES: Final = 2048 * MIB
"""Address space that Sail's allocator reserves and does not use."""


@dataclass(frozen=True)
class SailPlace:
    """What all servers share."""

    folder: Path
    """Closed to others."""
    sail: Path
    """Where it is installed."""
    etc: Path
    isolation: Isolation
    objects: ObjectStore
    settings: QuerySettings


class SailServer:
    """Made by `start_server`. Belongs to one event loop."""

    def __init__(self, org_id: UUID, place: SailPlace) -> None:
        self.org_id = org_id
        self.running = 0
        self.idle_since = time.monotonic()
        self.over_memory = False
        self._place = place
        self._folder = place.folder / uuid4().hex[:12]
        self._folder.mkdir(mode=0o755)
        self._folder.chmod(0o755)  # mounted into the sandbox; its parent is closed to others
        link = place.isolation.users is None  # else the sandbox's user is not ours
        size = place.settings.sail_files_mb * MIB
        self.files = StagedFiles(self._folder / "files", place.objects, link=link, max_bytes=size)
        self._directory = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        self._sandbox: Sandbox | None = None
        self._client: ConnectClient | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._sandbox is not None and self._sandbox.alive and self._ending is None

    @property
    def client(self) -> ConnectClient:
        assert self._client is not None  # noqa: S101 - it was started
        return self._client

    @property
    def memory_bytes(self) -> int:
        return self._sandbox.usage().memory_bytes if self._sandbox is not None else 0

    @property
    def processor_seconds(self) -> float:
        return self._sandbox.processor_seconds() if self._sandbox is not None else 0.0

    async def start(self) -> None:
        # A socket's path has about 100 characters at most, and our folder may have more.
        path = f"/proc/self/fd/{self._directory}/socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(64)
            launch = _launch(listener.fileno(), self._folder / "files", self._place)
            self._sandbox = await start(launch, self._place.isolation)
        asyncio.get_running_loop().add_reader(self._sandbox.output, self._discard_output)
        self._client = await asyncio.to_thread(ConnectClient, f"unix:{path}", self._place.settings.max_bytes)
        if not await asyncio.to_thread(self._client.wait_until_ready, START_SECONDS):
            raise SetupError("Sail did not start", hint="`trace doctor` shows what a sandbox needs")

    async def until_ended(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.until_ended()

    async def end(self) -> None:
        """Return when its processes and files are gone."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.kill()
            asyncio.get_running_loop().remove_reader(self._sandbox.output)
            os.close(self._sandbox.output)
        if self._client is not None:
            await asyncio.to_thread(self._client.close)
        os.close(self._directory)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _discard_output(self) -> None:
        """It may repeat the query, so it is not logged."""
        if self._sandbox is not None:
            with suppress(OSError):
                if not os.read(self._sandbox.output, 65536):
                    asyncio.get_running_loop().remove_reader(self._sandbox.output)


async def start_server(org_id: UUID, place: SailPlace) -> SailServer:
    server = SailServer(org_id, place)
    try:
        await server.start()
    except BaseException:
        await server.end()
        raise
    return server


def sail_folder() -> Path:
    """Where Sail is installed."""
    spec = importlib.util.find_spec("pysail")
    if spec is None or not spec.origin:
        raise SetupError("the Python module pysail is missing", hint="pip install 'tracelake[sail]'")
    return Path(spec.origin).parent


def _launch(listener: int, files: Path, place: SailPlace) -> Launch:
    below = (Path(WITHIN), Path(LIBRARY) / "x")
    mounts = system_mounts(place.etc, (), below)
    mounts += ["--ro-bind", str(INIT), f"{OURS}/{INIT.name}", "--ro-bind", str(place.sail), f"{LIBRARY}/pysail"]
    mounts += ["--ro-bind", str(files), WITHIN, *closing_mounts(TMP_BYTES, proc=False), "--chdir", "/"]
    arguments = {
        "limits": _limits(place.settings),
        "served": {listener: PORT},
        "argv": [interpreter(), "-S", "-B", "-m", "pysail", "spark", "server", "--port", str(PORT)],
        "env": _environment(place.settings),
    }
    return Launch(f"{OURS}/{INIT.name}", arguments, mounts, inherited=(listener,))


def _limits(settings: QuerySettings) -> dict[str, int]:
    return {
        "processes": 256,
        "file_bytes": TMP_BYTES,
        "open_files": 4096,
        "data_bytes": settings.sail_memory_mb * MIB + RESERVED_BYTES,
        "core": 0,
    }


def _environment(settings: QuerySettings) -> dict[str, str]:
    return {
        "PYTHONPATH": LIBRARY,
        "HOME": "/tmp",  # noqa: S108 - its own
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "RUST_LOG": "off",
        "TOKIO_WORKER_THREADS": str(settings.sail_threads),
        "SAIL_EXECUTION__DEFAULT_PARALLELISM": str(settings.sail_threads),
        # Queries share half; the rest is what Sail needs for itself, and rows on their way.
        "SAIL_RUNTIME__MEMORY_POOL__TYPE": "greedy",
        "SAIL_RUNTIME__MEMORY_POOL__GREEDY__MAX_SIZE": str(settings.sail_memory_mb * MIB // 2),
        "SAIL_RUNTIME__TEMPORARY_FILES__MAX_SIZE": "0",  # a query that must spill runs on Spark
    }
