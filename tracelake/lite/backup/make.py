"""Makes a backup of a running system."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec

from tracelake.domain.access.object_names import ObjectName
from tracelake.errors import BadInput, Conflict, InvalidRequest, NotFound
from tracelake.lite.backup.contents import (
    FILES,
    FORMAT,
    Manifest,
    StoredFile,
    describe,
    dump_of,
    finish,
    new_folder,
    object_path,
)
from tracelake.lite.backup.postgres_tools import dump_database
from tracelake.lite.backup.progress import BackupProgress
from tracelake.lite.backup.snapshots import DatabaseSnapshot, hold_all_files, take_snapshots
from tracelake.lite.home import Home
from tracelake.ports import ObjectStore
from tracelake.runtime.disk import sync_folder
from tracelake.store.migrate import Database
from tracelake.store.queries import queries

HOME_FILES: Final = ("keys/issuer.pem", "tls", "trace.toml")
"""What of the home folder is copied. Tokens of services and keys of capability tokens are made anew."""
SHOWN_EVERY: Final = 500
REFERENCES: Final = "referenced.jsonl"
"""What is to be copied; removed when it is."""


class ObjectReference(msgspec.Struct, frozen=True):
    """An object that the state refers to."""

    name: str
    sha256: str | None
    required: bool
    """It must be there."""


@dataclass(frozen=True)
class Running:
    """What a backup is made of."""

    home: Home
    dsns: Mapping[Database, str]
    objects: ObjectStore


def make_backup(system: Running, folder: Path, progress: BackupProgress) -> Manifest:
    """Copies everything into the folder; on any failure nothing is left there."""
    _refuse_in_home(system.home, folder)
    _refuse_other_queues(system.dsns)
    progress.note("waiting for a consistent point")
    with new_folder(folder), hold_all_files(system.dsns["state"], progress) as still_held:
        facts = _copy_databases(system.dsns, folder, progress)
        # The snapshots have ended, so that Postgres can clean up. Files are kept for as long as they are copied.
        objects, size = _copy_objects(system.objects, folder, progress)
        parts = [FILES, *map(dump_of, system.dsns), *_copy_home_files(system.home, folder)]
        described = [describe(folder, part) for part in parts]
        still_held()
        manifest = Manifest(FORMAT, uuid4(), version("tracelake"), **facts, parts=described, objects=objects, size=size)
        progress.stop_if_canceled()
        finish(folder, manifest)
    return manifest


def _refuse_in_home(home: Home, folder: Path) -> None:
    if folder.resolve().is_relative_to(home.root.resolve()):
        raise BadInput(
            "the folder is inside of the home folder, and would be lost with it",
            where=str(folder),
            hint="choose a folder elsewhere, best on another disk",
        )


def _refuse_other_queues(dsns: Mapping[Database, str]) -> None:
    if not dsns["queue"]:
        raise BadInput("the queue is on SQS, and a backup copies databases", where="queue.backend", hint="set it to pg")


def _copy_databases(dsns: Mapping[Database, str], folder: Path, progress: BackupProgress) -> dict[str, Any]:
    """Copies them at one point, and lists the objects that they refer to; what is known of the point."""
    (folder / "databases").mkdir(mode=0o700)
    with take_snapshots(dsns, progress) as snapshots:
        for database, snapshot in snapshots.items():
            progress.note(f"copying database {database}")
            dump_database(dsns[database], snapshot.name, folder / dump_of(database), progress)
        _list_references(snapshots["state"], folder / REFERENCES)
        return _facts(snapshots)


def _facts(snapshots: Mapping[Database, DatabaseSnapshot]) -> dict[str, Any]:
    ((made_at, epoch),) = snapshots["state"].rows(queries("backup")["describe_state"])
    applied = {
        database: [name for (name,) in snapshot.rows(queries("backup")["list_migrations"])]
        for database, snapshot in snapshots.items()
    }
    return {"made_at": made_at, "epoch": epoch, "migrations": applied}


def _list_references(state: DatabaseSnapshot, target: Path) -> None:
    with target.open("wb") as lines, state.connection.cursor("objects") as rows:
        for name, sha256, required in rows.execute(queries("backup")["list_objects"].encode()):
            lines.write(msgspec.json.encode(ObjectReference(name, sha256, required)) + b"\n")


def _copy_objects(objects: ObjectStore, folder: Path, progress: BackupProgress) -> tuple[int, int]:
    """Copies every object that the snapshot refers to, and lists them; how many there are, and their size."""
    count, size, decoder = 0, 0, msgspec.json.Decoder(ObjectReference)
    with (folder / REFERENCES).open("rb") as references, (folder / FILES).open("wb") as listed:
        for reference in map(decoder.decode, references):
            progress.stop_if_canceled()
            stored = _copy(objects, reference, folder)
            if stored is not None:
                listed.write(msgspec.json.encode(stored) + b"\n")
                count, size = count + 1, size + stored.bytes
            if count % SHOWN_EVERY == 0:
                progress.note(f"copying files: {count:,}, {size / 1e6:,.0f} MB")
    (folder / REFERENCES).unlink()
    return count, size


def _copy(objects: ObjectStore, reference: ObjectReference, folder: Path) -> StoredFile | None:
    """None: an object that need not be there is not."""
    try:
        target = object_path(folder, reference.name)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        size, found = _write(objects.chunks(ObjectName.parse(reference.name)), target)
    except (NotFound, InvalidRequest):
        if not reference.required:
            return None
        raise _lacking("a file that a commit refers to is missing from the object store", reference.name) from None
    if reference.sha256 not in (None, found):
        raise _lacking("a file in the object store does not have the checksum that its commit has", reference.name)
    return StoredFile(reference.name, size, found)


def _write(chunks: Iterator[bytes], target: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(target.parent)
    return size, digest.hexdigest()


def _lacking(what: str, name: str) -> Conflict:
    return Conflict(f"no backup was made: {what}", where=name, hint="`trace verify DATASET` shows what is damaged")


def _copy_home_files(home: Home, folder: Path) -> Iterator[str]:
    for name in HOME_FILES:
        place = home.root / name
        for path in sorted(place.glob("*.pem")) if place.is_dir() else [place] * place.is_file():
            part = f"home/{path.relative_to(home.root)}"
            (folder / part).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(iter([path.read_bytes()]), folder / part)
            yield part
