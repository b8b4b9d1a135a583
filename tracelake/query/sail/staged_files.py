"""Puts the files of resolved datasets where the sandbox of one engine can read them.

The sandbox sees one folder of them, read-only, which it cannot list. A file's name there is random, so a statement that
got past the SQL gate cannot name the files of another query. On disk a file is linked where the sandbox's user may read
it, and copied otherwise; from any other store it is fetched. No credential of a store enters a sandbox.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tracelake.domain.access.object_names import ObjectName
from tracelake.ports import ObjectStore

WITHIN: Final = "/data"
"""The folder, as the sandbox sees it."""


class StagedFiles:
    """The files of one engine; used from many threads."""

    def __init__(self, folder: Path, objects: ObjectStore, *, link: bool, max_bytes: int) -> None:
        """`link`: whether the sandbox's user may read our files. `max_bytes`: what unused files may take."""
        folder.mkdir(parents=True)
        folder.chmod(0o711)  # it can be entered, and not listed
        self._folder = folder
        self._objects = objects
        self._link = link
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._staged: OrderedDict[ObjectName, tuple[Path, int]] = OrderedDict()
        self._used: Counter[ObjectName] = Counter()

    @contextmanager
    def using(self, names: Sequence[ObjectName], *, alone: bool = False) -> Iterator[dict[ObjectName, str]]:
        """Yield where the sandbox finds each file; they stay there inside the block.

        With `alone` under names that no other query gets, and that are gone after the block.
        """
        with self._lock:
            self._used.update(names)
        try:
            with ExitStack() as stack:
                paths = {name: self._stage(name) for name in names}
                if alone:
                    paths = {name: stack.enter_context(self._linked(path)) for name, path in paths.items()}
                yield {name: f"{WITHIN}/{path.name}" for name, path in paths.items()}
        finally:
            with self._lock:
                self._used.subtract(names)
                self._drop_unused()

    @contextmanager
    def new_file(self) -> Iterator[tuple[Path, str]]:
        """Yield where a query's own file can be written, and where the sandbox finds it; it is gone after the block."""
        path = self._new_path()
        try:
            yield path, f"{WITHIN}/{path.name}"
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _linked(self, staged: Path) -> Iterator[Path]:
        with self.new_file() as (path, _):
            os.link(staged, path)
            yield path

    def _new_path(self) -> Path:
        return self._folder / f"{secrets.token_hex(16)}.parquet"

    def _stage(self, name: ObjectName) -> Path:
        with self._lock:
            if name in self._staged:
                self._staged.move_to_end(name)
                return self._staged[name][0]
        path = self._new_path()
        try:
            self._put(name, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        with self._lock:
            staged, _ = self._staged.setdefault(name, (path, path.stat().st_size))
        if staged != path:  # another query staged it meanwhile
            path.unlink()
        return staged

    def _put(self, name: ObjectName, path: Path) -> None:
        source = _path_of(self._objects, name)
        if source is not None and self._link:
            with suppress(OSError):  # another file system
                os.link(source, path)
                return
        if source is not None:
            shutil.copyfile(source, path)
        else:
            with path.open("wb") as file:
                file.writelines(self._objects.chunks(name))
        path.chmod(0o444)

    def _drop_unused(self) -> None:
        total = sum(size for _, size in self._staged.values())
        for name, (path, size) in list(self._staged.items()):
            if total <= self._max_bytes:
                return
            if not self._used[name]:
                path.unlink(missing_ok=True)
                del self._staged[name]
                total -= size


def _path_of(objects: ObjectStore, name: ObjectName) -> Path | None:
    address = urlsplit(objects.for_spark(name) or "")
    return Path(unquote(address.path)) if address.scheme == "file" else None
