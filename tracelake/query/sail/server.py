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
from subprocess import SubprocessError
from typing import Final, Literal
from uuid import UUID, uuid4

from tracelake.errors import SetupError
from tracelake.ports import ObjectStore
from tracelake.query.sail.connect import ConnectClient
from tracelake.query.sail.staged_files import WITHIN, StagedFiles
from tracelake.sandbox.bubblewrap import Isolation
from tracelake.sandbox.cgroup import Cgroup, Cgroups
from tracelake.sandbox.contents import INIT, MIB, closing_mounts, interpreter, system_mounts
from tracelake.sandbox.process import Sandbox, SandboxLaunch, start
from tracelake.settings import QuerySettings
from tracelake.spark.thread_times import thread_times

PORT: Final = 50051
OURS: Final = "/opt/trace"
LIBRARY: Final = f"{OURS}/lib"
START_SECONDS: Final = 20.0
TMP_BYTES: Final = 16 * MIB
RESERVED_BYTES: Final = 2048 * MIB
"""Address space that Sail's allocator reserves and does not use."""
BESIDE_BYTES: Final = 32 * MIB
"""What the kernel counts for a cgroup beside the memory of its processes."""
GROWN_SHARE: Final = 0.6
LOWER_PRIORITY: Final = 5
"""Without a cgroup: how nice its processes are to others."""


@dataclass(frozen=True)
class SailPlace:
    """What all servers share."""

    folder: Path
    """Closed to others."""
    sail: Path
    """Where it is installed."""
    etc: Path
    isolation: Isolation
    cgroups: Cgroups | None
    """None: this process may not limit others by cgroups."""
    objects: ObjectStore
    settings: QuerySettings


class SailServer:
    """Made by `start_server`. Belongs to one event loop."""

    def __init__(self, org_id: UUID, place: SailPlace) -> None:
        self.org_id = org_id
        self.running = 0
        self.idle_since = time.monotonic()
        self._too_large = False
        self._place = place
        self._cgroup: Cgroup | None = None
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
    def over_memory(self) -> bool:
        """Whether it was found too large, or the kernel ended it for that."""
        return self._too_large or (self._cgroup is not None and self._cgroup.was_out_of_memory())

    def size(self) -> Literal["small", "grown", "too large"]:
        """Measure it. One that has grown is to be replaced: Sail keeps some 50 KB of each query."""
        share = self.memory_bytes / (self._place.settings.sail_memory_mb * MIB)
        self._too_large = self._too_large or share > 1
        return "too large" if self._too_large else "grown" if share > GROWN_SHARE else "small"

    @property
    def memory_bytes(self) -> int:
        return self._sandbox.usage().memory_bytes if self._sandbox is not None else 0

    @property
    def processor_seconds(self) -> float:
        return self._sandbox.processor_seconds() if self._sandbox is not None else 0.0

    @property
    def wanted_seconds(self) -> float:
        """For how long its threads ran, or waited for a core: on a busy machine the first alone is small."""
        pids = self._sandbox.pids() if self._sandbox is not None else []
        return sum(times.ran + times.waited for pid in pids for times in thread_times(pid).values())

    async def start(self) -> None:
        # A socket's path has about 100 characters at most, and our folder may have more.
        path = f"/proc/self/fd/{self._directory}/socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(64)
            self._cgroup = _new_cgroup(self._place)
            launch = _launch(listener.fileno(), self._folder / "files", self._place, self._cgroup)
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
        if self._cgroup is not None:
            self._too_large = self.over_memory  # the group counts it, and is removed
            self._cgroup.remove()
        os.close(self._directory)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _discard_output(self) -> None:
        """It may repeat the query, so it is not logged."""
        if self._sandbox is not None:
            with suppress(OSError):
                if not os.read(self._sandbox.output, 65536):
                    asyncio.get_running_loop().remove_reader(self._sandbox.output)


async def start_server(org_id: UUID, place: SailPlace) -> SailServer:
    try:
        server = SailServer(org_id, place)
        try:
            await server.start()
        except BaseException:
            await server.end()
            raise
    except (OSError, SubprocessError) as error:  # a full disk, too many processes
        raise SetupError(f"Sail did not start ({error})", hint="`trace doctor` shows what a sandbox needs") from None
    return server


def sail_folder() -> Path:
    """Where Sail is installed."""
    spec = importlib.util.find_spec("pysail")
    if spec is None or not spec.origin:
        raise SetupError("the Python module pysail is missing", hint="pip install 'pysail>=0.7.2,<0.8'")
    return Path(spec.origin).parent


def _new_cgroup(place: SailPlace) -> Cgroup | None:
    if place.cgroups is None:
        return None
    memory = place.settings.sail_memory_mb * MIB + BESIDE_BYTES
    return place.cgroups.make(memory_bytes=memory, cpus=place.settings.sail_cpus)


def _launch(listener: int, files: Path, place: SailPlace, cgroup: Cgroup | None) -> SandboxLaunch:
    below = (Path(WITHIN), Path(LIBRARY) / "x")
    mounts = system_mounts(place.etc, (), below)
    mounts += ["--ro-bind", str(INIT), f"{OURS}/{INIT.name}", "--ro-bind", str(place.sail), f"{LIBRARY}/pysail"]
    mounts += ["--ro-bind", str(files), WITHIN, *closing_mounts(TMP_BYTES, proc=False), "--chdir", "/"]
    arguments = {
        "limits": _limits(place.settings),
        "served": {listener: PORT},
        "argv": [interpreter(), "-S", "-B", "-m", "pysail", "spark", "server", "--port", str(PORT)],
        "env": _environment(place.settings),
        "nice": 0 if cgroup is not None else LOWER_PRIORITY,
    }
    return SandboxLaunch(f"{OURS}/{INIT.name}", arguments, mounts, inherited=(listener,), cgroup=cgroup)


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
