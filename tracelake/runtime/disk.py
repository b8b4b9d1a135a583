"""Whether a disk has room."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Final

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the kernel says of a write for which there is no room."""
LEAST_BYTES: Final = 1024 * 1024
"""With less than this, Postgres cannot extend a table, nor start again after it ended."""


def is_full(folder: Path) -> bool:
    """Whether the file system that holds the folder has no room. One that cannot be asked is not taken for full."""
    try:
        return shutil.disk_usage(folder).free < LEAST_BYTES
    except OSError:
        return False
