"""Unpacks a bundle into a folder, atomically, read-only, and checked while it is written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from uuid import uuid4

from tracelake.domain.bundle.rules import LIMITS, Bundle, BundleEntry, BundleLimits, contents, listing
from tracelake.errors import ObjectExists

FILE, PROGRAM, FOLDER = 0o444, 0o555, 0o555
WHILE_WRITING = 0o700


def unpack(archive: bytes, folder: Path, *, limits: BundleLimits = LIMITS) -> Bundle:
    """Creates `folder`, whose parent exists, from the bundle, atomically.

    InvalidBundle if the zip breaks a rule (`domain/bundle/rules.py`), ObjectExists if the folder exists: a concurrent
    unpack of the same content may use that one.
    """
    bundle = listing(archive, limits)
    partial = folder.with_name(f".{folder.name}.{uuid4().hex}.partial")
    try:
        _write(archive, bundle, partial)
        _put_in_place(partial, folder)
    finally:
        remove_unpacked(partial)
    return bundle


def remove_unpacked(folder: Path) -> None:
    """Removes an unpacked bundle, if it exists."""
    if not folder.is_dir():
        return
    for path, _, _ in os.walk(folder):
        Path(path).chmod(WHILE_WRITING)
    shutil.rmtree(folder)


def _write(archive: bytes, bundle: Bundle, root: Path) -> None:
    root.mkdir(WHILE_WRITING)
    for entry in bundle.entries:
        path = root / entry.path
        if entry.folder:
            path.mkdir(WHILE_WRITING, parents=True, exist_ok=True)
        else:
            path.parent.mkdir(WHILE_WRITING, parents=True, exist_ok=True)
            _write_file(archive, entry, path)
    for folder, _, _ in os.walk(root, topdown=False):
        Path(folder).chmod(FOLDER)


def _write_file(archive: bytes, entry: BundleEntry, path: Path) -> None:
    # "x": never writes through an existing name.
    with path.open("xb") as file:
        file.writelines(contents(archive, entry))
        os.fchmod(file.fileno(), PROGRAM if entry.executable else FILE)


def _put_in_place(partial: Path, folder: Path) -> None:
    if folder.exists():
        raise ObjectExists("the folder exists already", where=str(folder))
    try:
        partial.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        raise ObjectExists("the folder exists already", where=str(folder)) from None
