"""Packs the runner as a function of AWS Lambda: its code and the packages it needs, as they are installed here.

Compiled packages are of this machine's Python and processor, so the function has to have the same. The same versions
give the same bytes.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final

from tracelake.errors import InvalidRequest, SetupError
from tracelake.udf.lambda_function import HANDLER
from tracelake.udf.pack import zipped

PACKAGE: Final = Path(__file__).parents[1]
CODE: Final = ("capability", "domain", "runtime", "sandbox", "settings", "udf", "wire")
"""Of Trace. The settings are whole: the function reads its own as every process does."""
FILES: Final = ("__init__.py", "errors.py", "ports.py")
REQUIRED: Final = (
    "aiohttp",
    "awslambdaric",
    "cryptography",
    "httptools",
    "httpx",
    "msgspec",
    "prometheus-client",
    "pydantic",
    "pydantic-settings",
    "starlette",
    "structlog",
    "uvicorn",
)
"""What that code imports. What these require is added."""
NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
OF_INSTALLER: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"})
PROCESSORS: Final = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}
CA: Final = "ca.pem"


@dataclass(frozen=True)
class FunctionZip:
    archive: bytes
    unpacked_bytes: int
    handler: str
    runtime: str
    """As Lambda names it."""
    architecture: str


def function_zip(ca: Path | None = None) -> FunctionZip:
    """`ca`: an authority that the function is to trust, put there as `ca.pem`."""
    if sys.platform != "linux":
        hint = "build it on Linux, with the Python and the processor that the function will have"
        raise SetupError(f"Lambda runs Linux, and the packages here are for {sys.platform}", hint=hint)
    files = dict(_code()) | {name: path for package in _distributions() for name, path in _files(package)}
    if ca is not None:
        files[CA] = _certificate(ca)
    return FunctionZip(
        archive=zipped(files),
        unpacked_bytes=sum(path.stat().st_size for path in files.values()),
        handler=HANDLER,
        runtime=f"python{sys.version_info.major}.{sys.version_info.minor}",
        architecture=PROCESSORS.get(platform.machine().lower(), platform.machine()),
    )


def _code() -> Iterator[tuple[str, Path]]:
    for path in [PACKAGE / name for name in FILES] + [path for part in CODE for path in (PACKAGE / part).rglob("*")]:
        if path.is_file() and path.suffix != ".pyc":
            yield path.relative_to(PACKAGE.parent).as_posix(), path


def _distributions() -> set[str]:
    found, look = set[str](), list(REQUIRED)
    while look:
        name = _normal(look.pop())
        if name in found:
            continue
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            if name in map(_normal, REQUIRED):
                raise SetupError(f"the package {name} is not installed", hint=f"pip install {name}") from None
            continue  # required on other systems, or by other versions of Python
        found.add(name)
        look += [_name(line) for line in required if "extra ==" not in line]
    return found


def _files(name: str) -> Iterator[tuple[str, Path]]:
    for file in metadata.files(name) or []:
        path = PurePosixPath(file)
        if ".." not in path.parts and path.suffix != ".pyc" and path.name not in OF_INSTALLER:
            yield str(path), Path(str(file.locate()))


def _name(requirement: str) -> str:
    found = NAME.match(requirement)
    return found[0] if found else requirement


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _certificate(path: Path) -> Path:
    try:
        if "BEGIN CERTIFICATE" in path.read_text():
            return path
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the certificate cannot be read: {error}", where=str(path)) from None
    raise InvalidRequest("there is no certificate in it", where=str(path), hint="a PEM file is wanted")
