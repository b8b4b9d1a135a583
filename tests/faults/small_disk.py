"""A small file system of a test's own, which it may fill."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="trace-test-disk-"))
    argv = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(place)]
    made = subprocess.run(argv, capture_output=True, check=False)
    if made.returncode:
        place.rmdir()
        # Nor in a user namespace: there is no second user in it that Postgres could run as.
        pytest.skip("only root mounts a small file system")
    place.chmod(0o777)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
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
