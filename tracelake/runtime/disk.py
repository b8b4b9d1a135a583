"""Whether a disk is full, and folders whose names are durable."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The kernel's errors for a write to a full disk."""
LEAST_BYTES: Final = 1024 * 1024
"""With less than this, Postgres cannot extend a table, nor start again after it ended."""


def is_full(folder: Path) -> bool:
    """Whether the file system of the folder is full. False if that cannot be found out."""
    try:
        return shutil.disk_usage(folder).free < LEAST_BYTES
    except OSError:
        return False


def sync_folder(folder: Path) -> None:
    """A new or changed name is durable when its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some file systems cannot, and need not
            os.fsync(handle)
    finally:
        os.close(handle)
