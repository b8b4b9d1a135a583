"""Syncs a file and those folders above it that are not known to be synced, up to the root.

A name is durable when its folder was synced. A folder that is known is held open, so if it is removed and made anew,
its inode is another one.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

MOST: Final = 128
"""Folders held open at once by a process."""

_known: OrderedDict[Path, int] = OrderedDict()
_lock = threading.Lock()


def sync_file(file: Path, root: Path) -> None:
    """Makes the file and its name durable."""
    _sync(file)
    folder, new = file.parent, []
    _sync(folder)
    while folder != root and not _is_known(folder):
        new.append(folder)
        folder = folder.parent
        _sync(folder)
    for item in reversed(new):  # from the top: one is known only when all above it are
        _remember(item)


def _is_known(folder: Path) -> bool:
    with _lock:
        descriptor = _known.get(folder)
        if descriptor is None:
            return False
        held, there = os.fstat(descriptor), folder.stat()
        return (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino)


def _remember(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with _lock:
        former = _known.pop(folder, None)
        _known[folder] = descriptor
        oldest = _known.popitem(last=False)[1] if len(_known) > MOST else None
    for unused in (former, oldest):
        if unused is not None:
            os.close(unused)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
