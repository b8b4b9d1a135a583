"""The content of a sandbox: mounts, environment, limits and the function's command, by the kind of its bundle."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tracelake.domain.bundle.rules import BundleKind
from tracelake.errors import SetupError
from tracelake.sandbox.bubblewrap import Isolation
from tracelake.sandbox.contents import INIT, MIB, closing_mounts, interpreter, system_mounts
from tracelake.sandbox.process import SandboxLaunch
from tracelake.settings import UdfSettings

HERE: Final = Path(__file__).parent
RUNTIME_CLIENT: Final = ("awslambdaric", "runtime_client", "simplejson", "snapshot_restore_py")
"""The Lambda runtime's client for Python, and all that it imports."""
SOCKETS: Final = ("runtime", "task", "query", "objects")
URLS: Final = {"task": "TRACE_TASK_URL", "query": "TRACE_QUERY_URL", "objects": "TRACE_OBJECTS_URL"}
"""The variables with the addresses of our listeners. Without that of objects, a function asks for keys of the store."""
FIRST_PORT: Final = 9001
LAST_RESORT_CPU_SECONDS: Final = 4 * 3600
SPARE_MEMORY: Final = 64 * MIB
"""Added to the function's own, so that the memory check ends it before an allocation fails."""


@dataclass(frozen=True)
class Code:
    """An unpacked bundle."""

    folder: Path
    kind: BundleKind
    handler: str


@dataclass(frozen=True)
class SandboxPaths:
    """Paths and ports, as the function sees them."""

    task_root: str
    library: str
    ours: str
    sockets: str
    ports: Mapping[str, int]

    def url(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"


WITHIN: Final = SandboxPaths(
    "/var/task",
    "/opt/trace/lib",
    "/opt/trace",
    "/run/trace",
    {listener: FIRST_PORT + index for index, listener in enumerate(SOCKETS)},
)


def without_isolation(code: Code, sockets: Path) -> SandboxPaths:
    """The folders of this machine, and free ports."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in SOCKETS]
        ports = {name: server.getsockname()[1] for name, server in zip(SOCKETS, servers, strict=True)}
    return SandboxPaths(str(code.folder), str(_linked_library(sockets)), str(HERE), str(sockets), ports)


def local_run(code: Code, folder: Path, port: int) -> SandboxPaths:
    """For `trace udf test`: one listener serves every port; `folder` gets a library of the runtime client alone."""
    return SandboxPaths(str(code.folder), str(_linked_library(folder)), str(HERE), "", dict.fromkeys(SOCKETS, port))


def _linked_library(folder: Path) -> Path:
    """The runtime's client alone: the function finds no other package of ours."""
    lib = folder / "lib"
    lib.mkdir()
    for path in library().values():
        (lib / path.name).symlink_to(path)
    return lib


def mounts(code: Code, sockets: Path, etc: Path, settings: UdfSettings) -> list[str]:
    """Bubblewrap's options; later mounts cover earlier ones."""
    below = (Path(WITHIN.task_root), Path(WITHIN.sockets), Path(WITHIN.library) / "x")
    found = system_mounts(etc, _node_prefix(code.kind), below)
    for path in library().values():
        found += ["--ro-bind", str(path), f"{WITHIN.library}/{path.name}"]
    for path in (INIT, HERE / "bootstrap.mjs"):
        found += ["--ro-bind", str(path), f"{WITHIN.ours}/{path.name}"]
    found += ["--ro-bind", str(code.folder), WITHIN.task_root, "--ro-bind", str(sockets), WITHIN.sockets]
    return [*found, *closing_mounts(settings.tmp_mb * MIB), "--chdir", WITHIN.task_root]


def launch(
    code: Code,
    sockets: Path,
    etc: Path,
    isolation: Isolation,
    settings: UdfSettings,
    *,
    listeners: Collection[str] = SOCKETS,
) -> SandboxLaunch:
    """How the sandbox of this code is started. `sockets`: the folder with a socket for each of the listeners."""
    place = WITHIN if isolation.bwrap else without_isolation(code, sockets)
    init = f"{place.ours}/{INIT.name}" if isolation.bwrap else str(INIT)
    options = mounts(code, sockets, etc, settings) if isolation.bwrap else []
    return SandboxLaunch(init, init_arguments(code, place, settings, listeners), options, folder=place.task_root)


def init_arguments(
    code: Code, place: SandboxPaths, settings: UdfSettings, listeners: Collection[str] = SOCKETS
) -> dict[str, Any]:
    """The arguments of `sandbox/init.py`, but for the uid."""
    return {
        "limits": _limits(settings),
        "listeners": {place.ports[listener]: f"{place.sockets}/{listener}" for listener in listeners},
        "argv": command(code, place, settings),
        "env": environment(code, place, settings, listeners),
    }


def environment(
    code: Code, place: SandboxPaths, settings: UdfSettings, listeners: Collection[str] = SOCKETS
) -> dict[str, str]:
    """Lambda's variables, and the URLs of our listeners."""
    tmp = "/tmp"  # noqa: S108 - its own
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": tmp,
        "TMPDIR": tmp,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONPATH": place.library,
        "PYTHONDONTWRITEBYTECODE": "1",
        "LAMBDA_TASK_ROOT": place.task_root,
        "LAMBDA_RUNTIME_DIR": place.ours,
        "_HANDLER": code.handler,
        "AWS_LAMBDA_RUNTIME_API": place.url("runtime"),
        "AWS_LAMBDA_FUNCTION_NAME": "udf",
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(settings.memory_mb),
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/udf",
        "AWS_LAMBDA_LOG_STREAM_NAME": "trace",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        **{name: f"http://{place.url(listener)}" for listener, name in URLS.items() if listener in listeners},
    }


@cache
def library() -> Mapping[str, Path]:
    """The path of each module of the runtime's client."""
    found = {}
    for name in RUNTIME_CLIENT:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SetupError(f"the Python module {name} is missing", hint="pip install awslambdaric")
        origin = Path(spec.origin)
        found[name] = origin.parent if origin.name == "__init__.py" else origin
    return found


def _limits(settings: UdfSettings) -> dict[str, int]:
    return {
        "processes": settings.processes,
        "file_bytes": settings.tmp_mb * MIB,
        "open_files": settings.open_files,
        "data_bytes": settings.memory_mb * MIB + SPARE_MEMORY,
        "cpu_seconds": LAST_RESORT_CPU_SECONDS,
        "core": 0,
    }


def command(code: Code, place: SandboxPaths, settings: UdfSettings) -> list[str]:
    if code.kind == "python":
        return [interpreter(), "-m", "awslambdaric", code.handler]
    if code.kind == "node":
        return [_node(), f"--max-old-space-size={settings.memory_mb * 3 // 4}", f"{place.ours}/bootstrap.mjs"]
    return [f"{place.task_root}/bootstrap"]


def _node() -> str:
    found = shutil.which("node")
    if found is None:
        raise SetupError("this bundle needs Node, and there is no `node` on PATH", hint="install Node 20 or later")
    return os.path.realpath(found)


def _node_prefix(kind: BundleKind) -> list[Path]:
    return [Path(_node()).parents[1]] if kind == "node" else []
