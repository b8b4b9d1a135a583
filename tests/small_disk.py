"""A small file system of its own, to be filled: by root, or by whoever is in a mount namespace of their own.

The Postgres server of the run must see it, so the namespace holds the whole run; and not of all tests, since some show
what a user without rights cannot read.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

DETACH = 2
"""`MNT_DETACH`: a server may still have a file open."""
NEEDS = (
    "it mounts a small file system: run it as root, or as `unshare --map-current-user --mount --keep-caps"
    " make test ARGS=tests/faults/test_full_disk.py`"
)


def mount_small_disk(place: Path, size: str) -> None:
    """A tmpfs of this size; the test is skipped where nobody may mount one."""
    libc = ctypes.CDLL(None, use_errno=True)  # the `mount` command asks who we are, and not what we may
    if libc.mount(b"none", bytes(place), b"tmpfs", 0, f"size={size}".encode()):
        place.rmdir()
        pytest.skip(f"{NEEDS} ({os.strerror(ctypes.get_errno())})")


def unmount(place: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(bytes(place), DETACH):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))
    place.rmdir()
