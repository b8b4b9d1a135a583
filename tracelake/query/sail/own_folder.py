"""A folder of one process among those of others: locked while it runs, and removed by the next one if it was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

LOCK: Final = "lock"


class OwnFolder:
    def __init__(self, parent: Path) -> None:
        """Make it, closed to others."""
        parent.mkdir(parents=True, exist_ok=True)
        parent.chmod(0o700)
        self.path = parent / uuid4().hex[:8]
        self.path.mkdir(mode=0o700)
        self._lock = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        with suppress(OSError):  # others are in it, or it is a disk of its own
            self.path.parent.rmdir()


def remove_leftovers(parent: Path) -> None:
    """Remove the folders of processes that have ended without it: nobody holds their locks."""
    for folder in parent.iterdir() if parent.is_dir() else ():
        if _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        parent.rmdir()


def _is_left(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # it is just being made, or is not ours
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
