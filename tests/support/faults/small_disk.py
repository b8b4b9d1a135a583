"""A small file system of a test's own, which it may fill."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DETACH = 2
"""`MNT_DETACH`: a server may still have a file open."""
NEEDS = (
    "it mounts a small file system: run it as root, or below"
    " `unshare --map-current-user --mount --keep-caps make test ARGS=...`"
)


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A tmpfs of this size; the test is skipped where nobody may mount one."""
    place = Path(tempfile.mkdtemp(prefix="trace-test-disk-"))
    libc = ctypes.CDLL(None, use_errno=True)  # the `mount` command asks who we are, and not what we may
    if libc.mount(b"none", bytes(place), b"tmpfs", 0, f"size={megabytes}m".encode()):
        place.rmdir()
        pytest.skip(f"{NEEDS} ({os.strerror(ctypes.get_errno())})")
    place.chmod(0o777)
    try:
        yield place
    finally:
        if libc.umount2(bytes(place), DETACH):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))
        place.rmdir()


def fill(disk: Path, *files: Path) -> Path:
    """Leaves no room, neither in the last page of these files; removing the file that it gives makes room again."""
    ballast = disk / "ballast"
    for file in (ballast, *files):
        _grow(file)
    return ballast


def _grow(file: Path) -> None:
    with file.open("ab", buffering=0) as opened:
        try:
            while True:
                opened.write(b"0" * 65536)
        except OSError:
            return
