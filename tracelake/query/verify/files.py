"""Reads the files that a commit set, and compares them with their checksums; runs in a thread.

A file is read in pieces. To count its rows it is also copied to a temporary file, since Parquet is read from its end.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.errors import InvalidRequest, NotFound, Unavailable
from tracelake.ports import ObjectStore
from tracelake.query.verify.rows import check_rows
from tracelake.wire.task.markers import MARKER, decode_marker
from tracelake.wire.user.ledger import Damage, LedgerEntry, LedgerPartition


@dataclass
class VerifiedCommit:
    """What was read of one commit, and what is wrong with it."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    removed: int = 0
    damages: list[Damage] = field(default_factory=list)

    def add(self, commit: int, kind: str, name: ObjectName | str, message: str) -> None:
        self.damages.append(Damage(commit=commit, kind=kind, where=str(name), message=message))


@dataclass(frozen=True)
class FileChecker:
    objects: ObjectStore
    folder: Path
    """For temporary files."""
    stop: threading.Event
    """Set: nobody waits for the answer any more."""

    def check(self, entry: LedgerEntry, *, rows: bool) -> VerifiedCommit:
        found = VerifiedCommit()
        present = [part for part in entry.partitions if part.files_removed_at is None and part.location]
        found.removed = sum(len(part.files) for part in entry.partitions if part.files_removed_at is not None)
        for partition in present:
            for file in partition.files:
                self._check_file(entry.commit, partition, file, found, rows=rows)
        for location in sorted({part.location for part in present}):
            self._find_added(entry, location, found)
        return found

    def _check_file(
        self, commit: int, partition: LedgerPartition, file: Mapping[str, Any], found: VerifiedCommit, *, rows: bool
    ) -> None:
        try:
            name = Folder.parse(partition.location).object(str(file["name"]))
        except InvalidRequest as wrong:
            found.add(commit, "partitions_changed", partition.location, f"{file['name']}: {wrong.message}")
            return
        found.files += 1
        with ExitStack() as stack:
            copy = stack.enter_context(tempfile.TemporaryFile(dir=self.folder)) if rows else None
            try:
                size, sha256 = self._read(name, copy)
            except NotFound:
                found.add(commit, "file_missing", name, f"{file['name']} is missing")
                return
            found.bytes += size
            if sha256 != file["sha256"]:
                counted = "" if size == file["bytes"] else f" ({size} bytes, not {file['bytes']})"
                found.add(commit, "file_changed", name, f"{file['name']} does not match its checksum{counted}")
            elif copy is not None:
                count, problems = check_rows(copy, file, partition)
                found.rows += count
                for problem in problems:
                    found.add(commit, "rows_differ", name, f"{file['name']} {problem}")

    def _read(self, name: ObjectName, copy: IO[bytes] | None) -> tuple[int, str]:
        size, digest = 0, hashlib.sha256()
        for chunk in self.objects.chunks(name):
            if self.stop.is_set():
                raise Unavailable("the caller has hung up")
            size += len(chunk)
            digest.update(chunk)
            if copy is not None:
                copy.write(chunk)
        return size, digest.hexdigest()

    def _find_added(self, entry: LedgerEntry, location: str, found: VerifiedCommit) -> None:
        """Files that the marker lists but no partition does are outputs that came too late: they are deleted later."""
        folder = Folder.parse(location)
        known = {file["name"] for part in entry.partitions if part.location == location for file in part.files}
        added = [stored.name for stored in self.objects.objects(folder) if _within(folder, stored.name) not in known]
        listed = set(self._listed(folder)) if len(added) > 1 else {MARKER}
        for name in sorted(added, key=str):
            if _within(folder, name) not in listed:
                found.add(
                    entry.commit,
                    "file_added",
                    name,
                    f"{_within(folder, name)} is in the folder of a commit that did not write it",
                )

    def _listed(self, folder: Folder) -> Iterator[str]:
        yield MARKER
        try:
            yield from (file.name for file in decode_marker(self.objects.get(folder.object(MARKER))).files)
        except (NotFound, InvalidRequest):
            return


def _within(folder: Folder, name: ObjectName) -> str:
    return str(name).removeprefix(str(folder))


def missing(damages: Sequence[Damage]) -> bool:
    return any(damage.kind == "file_missing" for damage in damages)
