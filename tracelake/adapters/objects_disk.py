"""The object store of Lite: a folder, one below it for each bucket. obstore writes, and this module syncs.

obstore puts by a temporary file and a rename, so an object is whole or not there; it does not wait for the disk. After
each put the file is synced, and those folders above it that are new: a name is durable when its folder is.

An attempt may write into its folder by itself, and could leave a link there. So nothing below the root is reached
through one: reading opens each part of a name without following, and what is open cannot be exchanged any more.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore

from tracelake.adapters.synced_folders import sync_file
from tracelake.domain.access.hadoop_path import hadoop_path
from tracelake.domain.access.object_names import SEGMENT, Folder, ObjectName
from tracelake.errors import DiskFull, NotFound, ObjectExists, ObjectsUnavailable
from tracelake.ports import StoredObject
from tracelake.runtime.disk import NO_SPACE

NOT_OURS: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO})
"""A link, a file in the place of a folder, a pipe: not an object."""

CHUNK: Final = 1024 * 1024

FULL: Final = re.compile(rf"os error ({'|'.join(str(number) for number in sorted(NO_SPACE))})\b")
"""By the text of obstore's error, which carries no number."""


@dataclass(frozen=True)
class DiskObjects:
    """`root` is a path, so that a copy of this in another process finds the same files."""

    root: Path

    def put(self, name: ObjectName, body: bytes | memoryview, *, replace: bool = False) -> None:
        with _failures(name):
            if self._leads_through_a_link(name):
                raise FileNotFoundError
            obstore.put(self._store, _path(name), body, mode="overwrite" if replace else "create")
            sync_file(self.root / name.bucket / name.key, self.root)

    def get(self, name: ObjectName) -> bytes:
        with _failures(name), self._opened(name) as file:
            return file.read()

    def chunks(self, name: ObjectName) -> Iterator[bytes]:
        with _failures(name), self._opened(name) as file:
            while chunk := file.read(CHUNK):
                yield chunk

    def head(self, name: ObjectName) -> StoredObject | None:
        try:
            with _failures(name), self._opened(name) as file:
                return _stored(name, os.fstat(file.fileno()))
        except NotFound:
            return None

    def objects(self, folder: Folder) -> Iterator[StoredObject]:
        if self._leads_through_a_link(folder):
            return
        with _failures(folder):
            for base, _, names in os.walk(self.root / folder.bucket / folder.key):
                for name in filter(SEGMENT.fullmatch, names):  # not what is still being put
                    yield from self._listed(Path(base, name))

    def delete(self, names: Sequence[ObjectName]) -> None:
        for name in names:
            if self._leads_through_a_link(name):
                continue
            try:
                with _failures(name):
                    obstore.delete(self._store, _path(name))
            except NotFound:
                continue

    def signed_url(self, name: ObjectName, seconds: int) -> str | None:  # noqa: ARG002 - the port's
        """None: a folder has no URL. The Dispatcher serves one instead (`dispatcher/bundles/url.py`)."""
        return None

    def for_spark(self, name: ObjectName) -> str | None:
        return hadoop_path(self.root / name.bucket / name.key)

    @cached_property
    def _store(self) -> LocalStore:
        return LocalStore(self.root, mkdir=True, automatic_cleanup=True)

    def __getstate__(self) -> dict[str, Path]:
        return {"root": self.root}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__dict__.update(state)

    @contextmanager
    def _opened(self, name: ObjectName) -> Iterator[BinaryIO]:
        """Part by part, so that no link is followed, even one that is created meanwhile."""
        at = self._root()
        try:
            for part in (name.bucket, *name.segments[:-1]):
                at = _step(at, part, os.O_DIRECTORY)
            at = _step(at, name.name, os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(at).st_mode):
                raise FileNotFoundError
            with os.fdopen(os.dup(at), "rb") as file:
                yield file
        finally:
            os.close(at)

    def _root(self) -> int:
        """The store itself: if that is no folder, its content is unknown."""
        try:
            return os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        except NotADirectoryError:
            raise ObjectsUnavailable("the object store does not answer: its root is not a folder") from None

    def _listed(self, path: Path) -> Iterator[StoredObject]:
        with suppress(FileNotFoundError):  # removed meanwhile
            found = path.lstat()
            if stat.S_ISREG(found.st_mode):
                yield _stored(ObjectName.parse(f"s3://{path.relative_to(self.root)}"), found)

    def _leads_through_a_link(self, name: ObjectName | Folder) -> bool:
        parts = (name.bucket, *name.segments)
        return any(self.root.joinpath(*parts[: n + 1]).is_symlink() for n in range(len(parts)))


def _path(name: ObjectName) -> str:
    return f"{name.bucket}/{name.key}"


def _stored(name: ObjectName, found: os.stat_result) -> StoredObject:
    return StoredObject(name, found.st_size)


def _step(at: int, part: str, kind: int) -> int:
    """Opens an entry of an open folder, and closes the folder."""
    below = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | kind, dir_fd=at)
    os.close(at)
    return below


@contextmanager
def _failures(name: ObjectName | Folder) -> Iterator[None]:
    """Raises our errors for those of obstore."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound("no such object", where=str(name)) from None
    except AlreadyExistsError:
        raise ObjectExists("an object of this name is there", where=str(name)) from None
    except (OSError, BaseError) as away:
        if getattr(away, "errno", None) in NOT_OURS:
            raise NotFound("no such object", where=str(name)) from None
        reason = str(away).split("\n", 1)[0]
        if getattr(away, "errno", None) in NO_SPACE or FULL.search(str(away)):
            raise DiskFull.of("the object store", str(name)) from None
        raise ObjectsUnavailable(f"the object store does not answer: {reason}", where=str(name)) from None
