"""What every sandbox contains: the system's programs and libraries, Python, and a small /etc; all read-only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

INIT: Final = Path(__file__).with_name("init.py")
"""The program of the first process in a sandbox."""
MIB: Final = 1024 * 1024
ETC: Final = {
    "passwd": "root:x:0:0::/:/bin/false\nsandbox:x:1000:1000::/tmp:/bin/sh\n",
    "group": "root:x:0:\nsandbox:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "timezone": "UTC\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
SYSTEM: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


def system_mounts(etc: Path, prefixes: Iterable[Path], below: Iterable[Path]) -> list[str]:
    """Bubblewrap's options. `prefixes`: further installations; `below`: paths whose parents must be open to all."""
    outside = {path for path in (Path(sys.base_prefix), *prefixes) if not path.is_relative_to("/usr")}
    found = ["--ro-bind", "/usr", "/usr"]
    for path in map(Path, SYSTEM):
        if path.is_symlink():
            found += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            found += ["--ro-bind", str(path), str(path)]
    found += _open_folders(Path("/etc/x"), *below, *outside)
    found += [word for path in sorted(outside) for word in ("--ro-bind", str(path), str(path))]
    found += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    found += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    return found + [word for name in ETC for word in ("--ro-bind", str(etc / name), f"/etc/{name}")]


def closing_mounts(tmp_bytes: int, *, proc: bool = True) -> list[str]:
    """The last of bubblewrap's options: devices and room for files; everything else is read-only from here on."""
    found = ["--proc", "/proc"] if proc else []
    found += ["--dev", "/dev"]
    for room, size in (("/dev/shm", MIB), ("/tmp", tmp_bytes)):  # noqa: S108 - its own
        found += ["--perms", "1777", "--size", str(size), "--tmpfs", room]
    # /proc and /dev are read-only too, whatever the sandbox's uid is.
    found += ["--remount-ro", "/proc"] if proc else []
    return [*found, "--remount-ro", "/dev", "--remount-ro", "/"]


def write_etc(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ETC.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    return folder


def interpreter() -> str:
    """Our Python, without the virtual environment."""
    return os.path.realpath(sys.executable)


def _open_folders(*below: Path) -> list[str]:
    """Parent folders: by default bubblewrap creates them for root alone."""
    ways = sorted({way for path in below for way in path.parents if way != Path("/")})
    return [word for way in ways for word in ("--perms", "0755", "--dir", str(way))]
