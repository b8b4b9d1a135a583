"""A name survives a power cut when its folder was synced, and every new folder above it; what lasts is left alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelake.adapters import synced_folders
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.adapters.synced_folders import sync_file
from tracelake.domain.access.object_names import ObjectName


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that were synced to disk."""
    seen: list[Path] = []
    sync: Callable[[int], None] = os.fsync

    def watched(descriptor: int) -> None:
        seen.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    return seen


def written(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"rows")
    return file


def test_the_first_name_syncs_everything_up_to_the_root_and_the_next_only_itself(
    tmp_path: Path, synced: list[Path]
) -> None:
    sync_file(written(tmp_path / "a" / "b" / "one"), tmp_path)
    assert synced == [tmp_path / "a" / "b" / "one", tmp_path / "a" / "b", tmp_path / "a", tmp_path]
    synced.clear()
    sync_file(written(tmp_path / "a" / "b" / "two"), tmp_path)
    assert synced == [tmp_path / "a" / "b" / "two", tmp_path / "a" / "b"]
    synced.clear()
    sync_file(written(tmp_path / "a" / "c" / "one"), tmp_path)
    assert synced == [tmp_path / "a" / "c" / "one", tmp_path / "a" / "c", tmp_path / "a"]


def test_a_folder_that_was_removed_and_made_anew_is_synced_again(tmp_path: Path, synced: list[Path]) -> None:
    sync_file(written(tmp_path / "a" / "b" / "one"), tmp_path)
    shutil.rmtree(tmp_path / "a")
    written(tmp_path / "a" / "b" / "one")
    synced.clear()
    sync_file(tmp_path / "a" / "b" / "one", tmp_path)
    assert synced == [tmp_path / "a" / "b" / "one", tmp_path / "a" / "b", tmp_path / "a", tmp_path]


def test_an_object_is_put_only_when_the_disk_keeps_it_and_its_name(tmp_path: Path, synced: list[Path]) -> None:
    objects, name = DiskObjects(tmp_path / "objects"), ObjectName.parse("s3://trace/a/one")
    file = tmp_path / "objects" / "trace" / "a" / "one"
    objects.put(name, b"rows")
    assert synced == [file, *list(file.parents)[:3]], "up to the root"
    synced.clear()
    objects.put(name, b"others", replace=True)
    assert synced == [file, file.parent], "also what takes another's place"


def test_no_more_folders_are_held_open_than_it_says(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(synced_folders.MOST + 20):
        sync_file(written(tmp_path / str(number) / "one"), tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + synced_folders.MOST
