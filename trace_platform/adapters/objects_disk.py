"""The object store of Lite: a folder, one below it for each bucket. obstore writes, we make it last.

obstore puts by a temporary file and a rename, so an object is whole or not there; it does not wait for the disk. After
each put the file is synced, and the folders up to the bucket's: a name is durable when its folder is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore

from trace_platform.domain.objects import Folder, ObjectName
from trace_platform.errors import NotFound, ObjectExists, ObjectsUnavailable
from trace_platform.ports import StoredObject


@dataclass(frozen=True)
class DiskObjects:
    """`root` is a path, so that a copy of this in another process finds the same files."""

    root: Path

    def put(self, name: ObjectName, body: bytes | memoryview, *, replace: bool = False) -> None:
        with _failures(name):
            obstore.put(self._store, _path(name), body, mode="overwrite" if replace else "create")
            self._make_last(name)

    def get(self, name: ObjectName) -> bytes:
        with _failures(name):
            return obstore.get(self._store, _path(name)).bytes().to_bytes()

    def head(self, name: ObjectName) -> StoredObject | None:
        try:
            with _failures(name):
                return _stored(obstore.head(self._store, _path(name)))
        except NotFound:
            return None

    def objects(self, folder: Folder) -> Iterator[StoredObject]:
        with _failures(folder):
            for batch in obstore.list(self._store, f"{folder.bucket}/{folder.key}"):
                yield from map(_stored, batch)

    def delete(self, names: Sequence[ObjectName]) -> None:
        for name in names:
            try:
                with _failures(name):
                    obstore.delete(self._store, _path(name))
            except NotFound:
                continue

    def for_spark(self, name: ObjectName) -> str | None:
        return (self.root / name.bucket / name.key).as_uri()

    @cached_property
    def _store(self) -> LocalStore:
        return LocalStore(self.root, mkdir=True, automatic_cleanup=True)

    def __getstate__(self) -> dict[str, Path]:
        return {"root": self.root}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__dict__.update(state)

    def _make_last(self, name: ObjectName) -> None:
        path = self.root / name.bucket / name.key
        _sync(path)
        while path != self.root:
            path = path.parent
            _sync(path)


def _path(name: ObjectName) -> str:
    return f"{name.bucket}/{name.key}"


def _stored(found: Any) -> StoredObject:
    return StoredObject(ObjectName.parse(f"s3://{found['path']}"), found["size"], found["last_modified"])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _failures(name: ObjectName | Folder) -> Iterator[None]:
    """What obstore raises, as ours: what is not there, what is there already, and what cannot be reached."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound("no such object", where=str(name)) from None
    except AlreadyExistsError:
        raise ObjectExists("an object of this name is there", where=str(name)) from None
    except (OSError, BaseError) as away:
        reason = str(away).split("\n", 1)[0]
        raise ObjectsUnavailable(f"the object store does not answer: {reason}", where=str(name)) from None
