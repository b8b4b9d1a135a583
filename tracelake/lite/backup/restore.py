"""Restores a backup into a new or stopped home folder.

While it runs, the home has a file `restoring.json`, and `trace up` refuses to start. A restore that was killed is
repeated by calling it again. One that fails, or is interrupted, leaves the home as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from tracelake.domain.access.object_names import ObjectName
from tracelake.errors import BadInput, InvalidBackup, SetupError
from tracelake.lite.backup.contents import (
    Manifest,
    check_file,
    disk_errors,
    dump_of,
    object_path,
    read_manifest,
    stored_objects,
)
from tracelake.lite.backup.postgres_tools import load_database
from tracelake.lite.backup.servers import running_databases, running_store
from tracelake.lite.home import Home, held, write_private
from tracelake.lite.provision import ExternalDsns
from tracelake.ports import ObjectStore
from tracelake.runtime.disk import sync_folder
from tracelake.settings import Settings
from tracelake.store.migrate import MIGRATIONS, Database, connect, migrate, refusals
from tracelake.store.queries import queries
from tracelake.store.restore import start_epoch

SHOWN_EVERY: Final = 500
SETTINGS_FILE: Final = "trace.toml"
"""One that the home has is kept: this restore was called with it."""


class Restoring(msgspec.Struct, frozen=True):
    """The content of `restoring.json`."""

    backup_id: UUID
    replaced: str | None
    """The folder of the home to which its former contents are moved."""
    moved: bool
    """They have been; whatever is in their place is half a restore."""


class Restored(msgspec.Struct, frozen=True):
    backup_id: UUID
    made_at: datetime
    epoch: int
    objects: int
    replaced: Path | None
    """Where the former contents of the home are now."""


def restore_backup(folder: Path, settings: Settings, *, replace: bool, note: Callable[[str], None]) -> Restored:
    note("checking the backup")
    manifest = read_manifest(folder)
    _refuse_newer(manifest, folder)
    home = Home(settings.home)
    home.make()
    with held(home), disk_errors(home.root, "the home folder"):
        epoch = _next_epoch(home, manifest)
        with _cleared(home, settings, manifest, replace=replace) as replaced:
            with running_store(home, settings) as objects:
                _put_objects(folder, objects, note)
            with running_databases(home, settings) as dsns:
                _load(folder, dsns, ExternalDsns.of(settings), note)
                start_epoch(dsns["state"], epoch, manifest.id, manifest.made_at)
            _put_home_files(folder, manifest, home)
    return Restored(manifest.id, manifest.made_at, epoch, manifest.objects, replaced)


def refuse_half_restored(home: Home) -> None:
    """SetupError if a restore into this home was killed."""
    if _marker(home).exists():
        raise SetupError(
            "a restore into this home was interrupted: it has only a part of its data",
            where=str(_marker(home)),
            hint="run `trace restore` again; it starts from the beginning",
        )


def _load(folder: Path, dsns: Mapping[Database, str], external: ExternalDsns, note: Callable[[str], None]) -> None:
    _refuse_filled(dsns)
    embedded = set(dsns.values()) - {external.state, external.data, external.queue}
    for database, dsn in dsns.items():
        note(f"loading database {database}")
        load_database(dsn, folder / dump_of(database), owned=dsn in embedded)
        migrate(dsn, database)


def _refuse_newer(manifest: Manifest, folder: Path) -> None:
    for database, applied in manifest.migrations.items():
        known = {path.stem for path in (MIGRATIONS / database).glob("*.sql")}
        if unknown := [name for name in applied if name not in known]:
            raise InvalidBackup(
                f"the backup was made by a newer version of Trace ({manifest.version}): "
                f"its {database} database has {unknown[0]}",
                where=str(folder),
                hint="restore it with that version, or a later one",
            )


def _next_epoch(home: Home, manifest: Manifest) -> int:
    """Above that of the backup and of every restore into this home, also of one that was not finished."""
    note = home.keys / "epoch"
    last = int(note.read_text()) if note.exists() else 0
    epoch = max(last, manifest.epoch) + 1
    write_private(note, f"{epoch}\n")
    return epoch


@contextmanager
def _cleared(home: Home, settings: Settings, manifest: Manifest, *, replace: bool) -> Iterator[Path | None]:
    """The home without data. If the block fails, all that it has made is removed, and the former data is put back."""
    places = _places(home, settings)
    state = _begun(home) or _begin(home, places, manifest, replace=replace)
    replaced = home.root / state.replaced if state.replaced else None
    moved = state.moved
    try:
        if moved:
            _remove(places)
        elif replaced is not None:
            _move(places, replaced)
        write_private(_marker(home), _encoded(Restoring(manifest.id, state.replaced, moved=True)))
        moved = True
        home.make()
        yield replaced
    except BaseException:
        if moved:  # what is in the places is ours
            _remove(places)
        if replaced is not None:
            _move_back(places, replaced)
        _marker(home).unlink(missing_ok=True)
        raise
    _marker(home).unlink()
    sync_folder(home.root)


def _begin(home: Home, places: Mapping[str, Path], manifest: Manifest, *, replace: bool) -> Restoring:
    filled = [place for place in places.values() if place.is_dir() and any(place.iterdir())]
    if filled and not replace:
        raise BadInput(
            "the home folder has data already",
            where=str(filled[0]),
            hint="choose a new --home, or add --replace: what is there is moved aside and not deleted",
        )
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    state = Restoring(manifest.id, f"replaced-{stamp}" if filled else None, moved=False)
    write_private(_marker(home), _encoded(state))
    return state


def _begun(home: Home) -> Restoring | None:
    """What a restore that was killed has noted."""
    try:
        return msgspec.json.decode(_marker(home).read_bytes(), type=Restoring)
    except FileNotFoundError:
        return None


def _places(home: Home, settings: Settings) -> Mapping[str, Path]:
    """Folders with data, by the name that they get where they are moved to."""
    places = {"postgres": home.postgres, "seaweedfs": home.seaweedfs}
    return places | ({"objects": settings.object_folder} if settings.objects.backend == "disk" else {})


def _move(places: Mapping[str, Path], replaced: Path) -> None:
    replaced.mkdir(mode=0o700, exist_ok=True)
    for name, place in places.items():
        if place.exists() and not (replaced / name).exists():
            _rename(place, replaced / name)


def _move_back(places: Mapping[str, Path], replaced: Path) -> None:
    for name, place in places.items():
        if (replaced / name).exists():
            _rename(replaced / name, place)
    replaced.rmdir()


def _rename(place: Path, target: Path) -> None:
    try:
        place.rename(target)
    except OSError as error:
        raise BadInput(
            f"a folder cannot be moved aside: {error.strerror}",
            where=str(place),
            hint="if it is a file system of its own, empty it yourself, and restore without --replace",
        ) from None


def _remove(places: Mapping[str, Path]) -> None:
    for place in places.values():
        shutil.rmtree(place, ignore_errors=True)


def _put_objects(folder: Path, objects: ObjectStore, note: Callable[[str], None]) -> None:
    for count, stored in enumerate(stored_objects(folder)):
        if count % SHOWN_EVERY == 0:
            note(f"copying files: {count:,}")
        path = object_path(folder, stored.name)
        check_file(path, stored)
        objects.put(ObjectName.parse(stored.name), path.read_bytes(), replace=True)


def _refuse_filled(dsns: Mapping[Database, str]) -> None:
    for database, dsn in dsns.items():
        with refusals(dsn, database), connect(dsn) as connection:
            ((tables,),) = connection.execute(queries("restore")["count_tables"].encode()).fetchall()
        if tables:
            raise BadInput(
                f"the {database} database is not empty", where=f"{database}.dsn", hint="name an empty database"
            )


def _put_home_files(folder: Path, manifest: Manifest, home: Home) -> None:
    for part in manifest.parts:
        target = home.root / part.name.removeprefix("home/")
        if part.name.startswith("home/") and not (target.name == SETTINGS_FILE and target.exists()):
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(target, (folder / part.name).read_text())


def _marker(home: Home) -> Path:
    return home.root / "restoring.json"


def _encoded(state: Restoring) -> str:
    return msgspec.json.encode(state).decode()
