"""The class archive: made once and checked by Java; a failed or damaged one breaks nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import ROOT
from tests.support.spark.session import end_shared
from tests.support.waiting import SECONDS, wait_until
from tracelake.errors import SetupError
from tracelake.spark import archive_location, class_archive
from tracelake.spark.archive_location import archive_for
from tracelake.spark.class_archive import make_archive
from tracelake.spark.configuration import spark_home
from tracelake.spark.java import Java, find_java


def test_the_wheels_java_gets_an_archive_that_it_accepts_also_below_a_folder_with_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a short training run. The check inside fails if Java loads Spark's classes from elsewhere."""
    end_shared()
    monkeypatch.setattr(class_archive, "train", lambda *_: None)
    spark = tmp_path / "a folder" / "pyspark"
    (spark / "jars").mkdir(parents=True)
    for jar in (spark_home() / "jars").glob("*.jar"):
        class_archive._link_or_copy(jar, spark / "jars" / jar.name)
    monkeypatch.setattr(class_archive, "spark_home", lambda: spark)
    used = watched_temporary_folders(monkeypatch)
    cache = tmp_path / "a cache"
    java = find_java({"PATH": ""}, cache)
    assert archive_for(java, cache) is None
    made = make_archive(java, cache, os.environ)
    assert made is not None, [note.read_text() for note in cache.rglob("*.failed")]
    assert archive_for(java, cache) == made
    left = sorted(path.name for path in made.parent.iterdir())
    assert left == sorted([made.name, f"{made.stem}.base.jsa", "lock"])
    assert len(used) == 2
    assert not any(Path(item).exists() for item in used), "the jars lay elsewhere for a while only"

    before = made.stat().st_mtime_ns
    assert make_archive(java, cache, os.environ) == made
    assert made.stat().st_mtime_ns == before, "made once"

    made.chmod(0o644)
    with made.open("r+b") as file:
        file.seek(made.stat().st_size // 2)
        file.write(os.urandom(4096))
    with pytest.raises(subprocess.CalledProcessError):
        class_archive._try(java, made, tmp_path)


def test_an_archive_without_sparks_classes_is_rejected(tmp_path: Path) -> None:
    """As Java silently makes it below a folder with a space."""
    java = find_java({"PATH": ""}, tmp_path)
    bare = tmp_path / "bare.jsa"
    class_archive._run(java, "-Xshare:dump", f"-XX:SharedArchiveFile={bare}")
    with pytest.raises(SetupError, match="left Spark's classes out"):
        class_archive._try(java, bare, tmp_path)


def test_a_failed_archive_leaves_a_note_and_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(*_: object) -> None:
        tried.append(1)
        raise OSError("no space")

    monkeypatch.setattr(class_archive, "start_session", refuse)
    java = Java(tmp_path, "17.0.1", "PATH", runtime(tmp_path))
    assert make_archive(java, tmp_path, {}) is None
    assert make_archive(java, tmp_path, {}) is None
    assert tried == [1]
    assert [note.read_text() for note in tmp_path.rglob("*.failed")] == ["no space\n"]
    assert archive_for(java, tmp_path) is None
    assert not list(tmp_path.rglob("making-*"))


def test_another_java_or_spark_uses_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = Java(tmp_path, "17.0.1", "PATH", tmp_path)
    places = {archive_location.place_of(java, tmp_path)}
    places.add(archive_location.place_of(Java(tmp_path, "17.0.2", "PATH", tmp_path), tmp_path))
    places.add(archive_location.place_of(Java(tmp_path, "17.0.1", "PATH", tmp_path / "other"), tmp_path))
    monkeypatch.setattr(archive_location, "version", lambda _: "4.3.1")
    places.add(archive_location.place_of(java, tmp_path))
    assert len(places) == 4


def test_files_of_a_killed_run_and_old_archives_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = Java(tmp_path, "17.0.1", "PATH", runtime(tmp_path))
    place = archive_location.place_of(java, tmp_path)
    place.parent.mkdir()
    (place.parent / "making-dead").mkdir()
    (place.parent / "making-dead" / "classes.jsa").touch()
    elsewhere = Path(tempfile.mkdtemp(prefix="trace-"))
    (place.parent / "making-dead" / "elsewhere").write_text(str(elsewhere))
    for age, name in enumerate(("new", "old", "older")):
        for path in (place.parent / f"{name}.jsa", place.parent / f"{name}.base.jsa"):
            path.touch()
            os.utime(path, (1_000_000 - age, 1_000_000 - age))
    monkeypatch.setattr(class_archive, "_make", lambda _java, where, _env: where.touch())
    assert make_archive(java, tmp_path, {}) == place
    left = sorted(path.name for path in place.parent.iterdir())
    assert left == sorted([place.name, "new.jsa", "new.base.jsa", "lock"])
    assert not elsewhere.exists()


@pytest.mark.parametrize("name", ["trace-mine", "precious"])
def test_a_folder_not_made_by_us_is_not_removed_whatever_its_note_contains(tmp_path: Path, name: str) -> None:
    precious = tmp_path / name if name.startswith("trace-") else Path(tempfile.mkdtemp(prefix="precious-"))
    precious.mkdir(exist_ok=True)
    half_made = tmp_path / "making-dead"
    half_made.mkdir()
    (half_made / "elsewhere").write_text(str(precious))
    class_archive._remove_half_made(half_made)
    assert not half_made.exists()
    assert precious.exists()
    precious.rmdir()


def test_a_killed_training_run_leaves_no_java_behind(tmp_path: Path) -> None:
    """Its JVM would write the archive during an orderly end: it is killed instead."""
    argv = [sys.executable, "-m", "tracelake.spark.class_archive", str(tmp_path)]
    process = subprocess.Popen(argv, cwd=ROOT, start_new_session=True)
    try:
        family = until_java_runs(process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    _, alive = psutil.wait_procs(family, timeout=SECONDS)
    assert not alive


def watched_temporary_folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    make = tempfile.TemporaryDirectory

    def watched(**options: Any) -> tempfile.TemporaryDirectory[str]:
        folder = make(**options)
        made.append(folder.name)
        return folder

    monkeypatch.setattr(tempfile, "TemporaryDirectory", watched)
    return made


def until_java_runs(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    def training() -> list[psutil.Process] | None:
        family = psutil.Process(process.pid).children(recursive=True)
        trains = any("-XX:ArchiveClassesAtExit" in word for child in family for word in words(child))
        return family if trains else None

    return wait_until(training, "a training run is seen")


def words(item: psutil.Process) -> list[str]:
    try:
        return item.cmdline()
    except psutil.Error:
        return []


def runtime(folder: Path) -> Path:
    """It has its own base archive, so that none must be made."""
    (folder / "runtime" / "lib" / "server").mkdir(parents=True)
    (folder / "runtime" / "lib" / "server" / "classes.jsa").touch()
    return folder / "runtime"
