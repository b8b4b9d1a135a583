"""What a backup folder contains, and whether it is whole.

    backup.json              written last: a folder without it is no backup
    files.jsonl              the name, size and SHA-256 of every object
    databases/*.dump         one archive of pg_dump for each database
    objects/<bucket>/<key>   the objects
    home/                    keys and certificates of the home folder

`backup.json` has the checksums of all other files but the objects, and `files.jsonl` has theirs. So a file that is
truncated, changed or missing is found.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from tracelake.domain.access.object_names import ObjectName
from tracelake.errors import BadInput, DiskFull, InvalidBackup
from tracelake.lite.home import write_private
from tracelake.runtime.disk import NO_SPACE, sync_folder

FORMAT: Final = 1
MANIFEST: Final = "backup.json"
FILES: Final = "files.jsonl"
UNFINISHED: Final = "unfinished"
"""Exists while the backup is being made; whoever makes it holds its lock."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file and its checksum."""

    name: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    format: int
    id: UUID
    version: str
    """Of Trace."""
    made_at: datetime
    """The point in time to which a restore returns."""
    epoch: int
    """How often the system had been restored before."""
    migrations: Mapping[str, list[str]]
    """By database."""
    parts: list[StoredFile]
    """Every file but the objects; names are within the folder."""
    objects: int
    size: int
    """Of all objects, in bytes."""


def dump_of(database: str) -> str:
    return f"databases/{database}.dump"


def object_path(folder: Path, name: str) -> Path:
    """Where the folder has the object with this name (`s3://...`)."""
    parsed = ObjectName.parse(name)
    return folder / "objects" / parsed.bucket / parsed.key


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """A folder in which a backup is being made. Whatever ends the block, it holds a whole backup or nothing."""
    existed = folder.exists()
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _refuse_other_contents(folder)
        lock = os.open(folder / UNFINISHED, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(lock, folder)
        _empty(folder)  # what a killed backup has left
        with disk_errors(folder):
            yield
        (folder / UNFINISHED).unlink()
    except BaseException:
        _empty(folder)
        (folder / UNFINISHED).unlink(missing_ok=True)
        if not existed:
            with suppress(OSError):
                folder.rmdir()
        raise
    finally:
        os.close(lock)


def finish(folder: Path, manifest: Manifest) -> None:
    """Makes the folder a backup. All else has been written and synced."""
    write_private(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode() + "\n")
    sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """InvalidBackup unless the folder is a whole backup that this code can read. Objects are not looked at."""
    manifest = _decoded(folder)
    if manifest.format > FORMAT:
        raise InvalidBackup(
            f"the backup was made by a newer version of Trace ({manifest.version})",
            where=str(folder / MANIFEST),
            hint="restore it with that version, or a later one",
        )
    for part in manifest.parts:
        check_file(folder / part.name, part)
    return manifest


def check_file(path: Path, expected: StoredFile) -> None:
    """InvalidBackup unless the file is there, with its size and checksum."""
    try:
        size, sha256 = path.stat().st_size, sha256_of(path)
    except FileNotFoundError:
        raise damaged("a file is missing", path) from None
    if size != expected.bytes:
        raise damaged(f"a file has {size} bytes instead of {expected.bytes}", path)
    if sha256 != expected.sha256:
        raise damaged("a file does not match its checksum", path)


def damaged(what: str, where: Path) -> InvalidBackup:
    return InvalidBackup(f"the backup is damaged: {what}", where=str(where), hint="restore another backup")


def describe(folder: Path, name: str) -> StoredFile:
    """A file of the folder with its checksum; the file is synced."""
    path = folder / name
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return StoredFile(name, path.stat().st_size, sha256_of(path))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stored_objects(folder: Path) -> Iterator[StoredFile]:
    """The entries of `files.jsonl`, whose own checksum was compared before."""
    decoder = msgspec.json.Decoder(StoredFile)
    with (folder / FILES).open("rb") as lines:
        for line in lines:
            yield decoder.decode(line)


@contextmanager
def disk_errors(folder: Path, disk: str = "the backup") -> Iterator[None]:
    """Raises our errors for those of the kernel about the folder."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFull.of(disk, str(folder)) from None
        reason = error.strerror or str(error)
        raise BadInput(f"the folder cannot be used: {reason}", where=error.filename or str(folder)) from None


def _refuse_other_contents(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    if MANIFEST in names:
        raise BadInput("the folder holds a backup already", where=str(folder), hint="choose a new folder")
    if names and UNFINISHED not in names:
        raise BadInput("the folder is not empty", where=str(folder), hint="choose a new or an empty folder")


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadInput(
            "another backup is being made in this folder", where=str(folder), hint="wait for it, or choose another"
        ) from None


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name == UNFINISHED:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _decoded(folder: Path) -> Manifest:
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        unfinished = (folder / UNFINISHED).exists()
        raise InvalidBackup(
            "the backup is unfinished: it was interrupted" if unfinished else "the folder is not a backup",
            where=str(folder),
            hint="give a folder that `trace backup` has finished",
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise damaged(f"its description cannot be read ({wrong})", folder / MANIFEST) from None
