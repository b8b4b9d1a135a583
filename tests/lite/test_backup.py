"""`trace backup` and `trace restore` as a person runs them: what comes back, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest

from tests.support import ROOT
from tests.support.postgres import RunningServer
from tests.support.systems.trace_up import LIGHT, TraceUp, new_folder, short_run
from tests.support.waiting import SECONDS, wait_until
from tracelake.errors import BadInput, Forbidden, InvalidBackup, SetupError
from tracelake.lite.backup.contents import UNFINISHED
from tracelake.lite.backup.listener import listening_for_backups, request_backup
from tracelake.lite.backup.make import Running
from tracelake.lite.backup.restore import restore_backup
from tracelake.lite.home import Home, held
from tracelake.settings import Settings
from tracelake.store.queries import queries

pytestmark = pytest.mark.timeout(600)

FUNCTION: Final = ROOT / "dags" / "large_transfers"


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from new_folder()


@pytest.fixture(scope="module")
def places() -> Iterator[Path]:
    yield from new_folder()


@pytest.fixture(scope="module")
def system(places: Path, postgres: RunningServer) -> Iterator[TraceUp]:
    """With a state database that the tests can reach, and one bundle."""
    name = f"backup_{uuid4().hex[:8]}"
    made = short_run(places, "--without", LIGHT, env={"TRACE_STATE__DSN": postgres.create_database(name)})
    try:
        with made.running():
            assert made.trace("udf", "push", str(FUNCTION)).returncode == 0
            yield made
    finally:
        postgres.drop_database(name)


@pytest.fixture(scope="module")
def backup(system: TraceUp, places: Path) -> Path:
    """Read by many tests, and changed by none."""
    done = system.trace("backup", str(places / "backup"), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["objects"] == 1
    return places / "backup"


def test_a_restored_system_has_all_that_it_had_when_the_backup_was_made(folder: Path) -> None:
    with short_run(folder, "--without", LIGHT).running() as system:
        assert system.trace("udf", "push", str(FUNCTION)).returncode == 0
        assert system.trace("user", "add", "ada", "--role", "reader").returncode == 0
        assert system.trace("backup", str(folder / "backup")).returncode == 0
        assert system.trace("user", "add", "lost", "--role", "reader").returncode == 0
        before = _files(system.home / "objects")
    again = TraceUp(folder / "again", "--without", LIGHT, env=system.env)
    done = again.trace("restore", str(folder / "backup"))
    assert (done.returncode, "`trace up` starts it" in done.stdout) == (0, True), done.stderr
    with again.running():
        users = json.loads(again.trace("user", "list", "--json").stdout)["users"]
        assert {user["subject"] for user in users} == {"local|admin", "ada"}
        assert _files(again.home / "objects") == before
        keys = again.get("dispatcher_internal", "/internal/jwks/task", **_as_worker(again)).json()
        assert (keys["epoch"], len(keys["keys"])) == (1, 1)


def test_the_files_of_an_s3_server_come_back_too(folder: Path) -> None:
    env = {"TRACE_OBJECTS__BACKEND": "seaweedfs", "TRACE_UP__WATCHDOG_SECONDS": "60"}
    with short_run(folder, "--without", LIGHT, env=env).running() as system:
        assert system.trace("udf", "push", str(FUNCTION)).returncode == 0
        done = system.trace("backup", str(folder / "backup"))
        assert done.returncode == 0, done.stderr
    again = TraceUp(folder / "again", "--without", LIGHT, env=system.env)
    done = again.trace("restore", str(folder / "backup"))
    assert done.returncode == 0, done.stderr
    with again.running():
        assert again.trace("backup", str(folder / "second")).returncode == 0
    assert _files(folder / "second" / "objects") == _files(folder / "backup" / "objects") != {}


def test_a_restore_into_a_used_home_moves_what_is_there_aside_and_counts_epochs(backup: Path, folder: Path) -> None:
    for place in (folder / "objects" / "former", folder / "keys" / "epoch"):
        place.parent.mkdir()
        place.write_text("6")
    with pytest.raises(BadInput, match="the home folder has data already"):
        _restore(backup, folder)
    done = restore_backup(backup, Settings(home=folder), replace=True, note=lambda _: None)
    assert done.epoch == 8, "above every one that was begun"
    assert done.replaced is not None
    assert (done.replaced / "objects" / "former").read_text() == "6"
    assert (folder / "postgres" / "state" / "PG_VERSION").exists()


def test_only_the_owner_can_read_a_backup(backup: Path) -> None:
    assert all(path.stat().st_mode & 0o077 == 0 for path in [backup, *backup.rglob("*")])


def test_a_folder_that_is_not_empty_or_in_the_home_is_refused(system: TraceUp, backup: Path, folder: Path) -> None:
    (folder / "file").touch()
    messages = [_refusal(system, place) for place in (folder, backup, system.home / "backup", folder / "file")]
    assert messages == [
        "the folder is not empty",
        "the folder holds a backup already",
        "the folder is inside of the home folder, and would be lost with it",
        "the folder cannot be used: File exists",
    ]
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_without_a_running_system_the_error_says_how_to_start_it(folder: Path) -> None:
    with pytest.raises(SetupError, match="nothing runs in"):
        request_backup(Home(folder), folder / "backup", lambda _: None)


def test_a_backup_on_a_full_disk_says_so_and_leaves_nothing(system: TraceUp, folder: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root mounts a small disk")
    try:
        assert _refusal(system, folder) == "the disk of the backup is full: nothing was stored"
        assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_file_that_is_damaged_in_the_store_fails_the_backup(system: TraceUp, folder: Path) -> None:
    (bundle,) = [path for path in (system.home / "objects").rglob("*") if path.is_file()]
    content = bundle.read_bytes()
    bundle.write_bytes(content[:-1])
    try:
        assert "does not have the checksum that its commit has" in _refusal(system, folder / "backup")
        bundle.unlink()
        assert "is missing from the object store" in _refusal(system, folder / "backup")
    finally:
        bundle.write_bytes(content)
    assert not (folder / "backup").exists()


def test_ctrl_c_ends_a_backup_and_leaves_nothing(system: TraceUp, folder: Path) -> None:
    with _deleting(system):
        caller = _begin_backup(system, folder / "backup")
        caller.send_signal(signal.SIGINT)
        assert caller.wait(SECONDS) == 130
        wait_until(lambda: not (folder / "backup").exists(), "the folder is removed")


def test_a_second_backup_at_the_same_time_is_refused(system: TraceUp, folder: Path) -> None:
    with _deleting(system):
        caller = _begin_backup(system, folder / "backup")
        assert _refusal(system, folder / "other") == "another backup is being made"
    assert caller.wait(SECONDS) == 0, "the first waited until no file was being deleted"


def test_a_killed_backup_is_never_taken_for_a_whole_one_and_can_be_made_again(
    folder: Path, postgres: RunningServer
) -> None:
    name = f"backup_{uuid4().hex[:8]}"
    system = short_run(folder, "--without", LIGHT, env={"TRACE_STATE__DSN": postgres.create_database(name)})
    try:
        system.start()
        with _deleting(system):
            caller = _begin_backup(system, folder / "backup")
            system.stop(signal.SIGKILL)
            system.ready_file.unlink()
            assert caller.wait(SECONDS) == 1
        with pytest.raises(InvalidBackup, match="the backup is unfinished: it was interrupted"):
            _restore(folder / "backup", folder / "other")
        with system.running():
            assert system.trace("backup", str(folder / "backup")).returncode == 0
        assert not (folder / "backup" / UNFINISHED).exists()
    finally:
        postgres.drop_database(name)


def _truncate(backup: Path) -> None:
    with (backup / "databases" / "data.dump").open("r+b") as dump:
        dump.truncate(100)


def _change(backup: Path) -> None:
    with (backup / "databases" / "state.dump").open("r+b") as dump:
        dump.seek(200)
        dump.write(b"\xff" * 8)


def _change_object(backup: Path) -> None:
    (path,) = [path for path in (backup / "objects").rglob("*") if path.is_file()]
    path.write_bytes(b"x" * path.stat().st_size)


def _rewrite(**changes: Any) -> Callable[[Path], None]:
    def rewrite(backup: Path) -> None:
        path = backup / "backup.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return rewrite


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_truncate, "the backup is damaged: a file has 100 bytes instead of"),
        (_change, "the backup is damaged: a file does not match its checksum"),
        (_change_object, "the backup is damaged: a file does not match its checksum"),
        (lambda backup: (backup / "files.jsonl").unlink(), "the backup is damaged: a file is missing"),
        (lambda backup: (backup / "backup.json").write_text("{"), "the backup is damaged: its description"),
        (lambda backup: (backup / "backup.json").unlink(), "the folder is not a backup"),
        (shutil.rmtree, "the folder is not a backup"),
        (_rewrite(format=2), r"the backup was made by a newer version of Trace \("),
        (
            _rewrite(migrations={"state": ["9999_later"]}),
            "newer version of Trace .*: its state database has 9999_later",
        ),
    ],
)
def test_what_is_no_whole_backup_is_refused_and_the_home_stays_empty(
    backup: Path, folder: Path, spoil: Callable[[Path], None], message: str
) -> None:
    copy = folder / "copy"
    shutil.copytree(backup, copy)
    spoil(copy)
    with pytest.raises(InvalidBackup, match=message):
        _restore(copy, folder / "home")
    assert _data_of(folder / "home") == []


def test_a_restore_into_a_running_home_is_refused(backup: Path, folder: Path) -> None:
    home = Home(folder)
    home.make()
    with held(home), pytest.raises(SetupError, match="Trace is up already"):
        _restore(backup, folder)


def test_a_database_that_is_not_empty_is_refused_and_the_former_data_is_back(
    backup: Path, folder: Path, system: TraceUp
) -> None:
    """The DSN names the state database of the running system."""
    (folder / "objects").mkdir()
    (folder / "objects" / "former").touch()
    settings = Settings(home=folder, state={"dsn": system.env["TRACE_STATE__DSN"]})  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="the state database is not empty"):
        restore_backup(backup, settings, replace=True, note=lambda _: None)
    assert _data_of(folder) == [folder / "objects" / "former"]


def test_a_killed_restore_keeps_the_system_from_starting_and_can_be_repeated(backup: Path, folder: Path) -> None:
    home = TraceUp(folder / "home", "--without", LIGHT)
    argv = [*home.argv, "restore", str(backup), "--home", str(home.home)]
    first = subprocess.Popen(argv, env=home.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until((home.home / "postgres" / "state" / "PG_VERSION").exists, "databases are being loaded")
    first.kill()
    first.wait()
    refused = home.trace("up", "--port-base", "0")
    assert "a restore into this home was interrupted" in refused.stderr
    done = home.trace("restore", str(backup), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    with home.running():
        assert home.me()["role"] == "admin"


@pytest.mark.anyio
async def test_processes_of_the_system_and_other_users_get_no_backup(folder: Path) -> None:
    import anyio

    home = Home(folder)
    home.make()
    (home.lock.parent / "sockets").write_text(str(folder))
    system = Running(home, {}, objects=None)  # type: ignore[arg-type] # it is refused before
    with held(home):
        async with listening_for_backups(folder, system, lambda: {os.getsid(0)}):
            with pytest.raises(Forbidden):
                await anyio.to_thread.run_sync(request_backup, home, folder / "made", lambda _: None)
    assert not (folder / "made").exists()


def _refusal(system: TraceUp, folder: Path) -> str:
    done = system.trace("backup", str(folder), "--json")
    assert done.returncode == 1, done.stdout
    found: str = json.loads(done.stdout)["error"]["message"]
    return found


def _restore(backup: Path, home: Path) -> None:
    restore_backup(backup, Settings(home=home), replace=False, note=lambda _: None)


def _data_of(home: Path) -> list[Path]:
    """Files with data in a home."""
    return [path for name in ("postgres", "objects") for path in (home / name).rglob("*") if path.is_file()]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _as_worker(system: TraceUp) -> dict[str, str]:
    return {"X-Trace-Worker-Token": (Path(system.ready()["service_tokens"]) / "worker.token").read_text().strip()}


def _begin_backup(system: TraceUp, folder: Path) -> subprocess.Popen[bytes]:
    """A caller who waits, because files are being deleted."""
    argv = [*system.argv, "backup", str(folder), "--home", str(system.home)]
    caller = subprocess.Popen(argv, env=system.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until((folder / UNFINISHED).exists, "the backup has begun")
    return caller


@contextmanager
def _deleting(system: TraceUp) -> Iterator[None]:
    """Files are being deleted while the block runs."""
    with psycopg.connect(system.env["TRACE_STATE__DSN"]) as state, state.transaction():
        state.execute(queries("files_lock")["share"].encode())
        yield
