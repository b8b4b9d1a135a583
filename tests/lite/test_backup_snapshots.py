"""The snapshots of a backup are of one point: nobody writes to data Postgres between those of state and data."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.support.waiting import SECONDS
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.errors import BadInput
from tracelake.lite.backup.make import Running, make_backup
from tracelake.lite.backup.progress import BackupProgress, Canceled
from tracelake.lite.backup.snapshots import take_snapshots
from tracelake.lite.home import Home
from tracelake.lite.provision import ExternalDsns, owner_dsns
from tracelake.settings import Settings
from tracelake.store.migrate import Database

WRITE = "INSERT INTO trace_meta.sources (source_key) VALUES (%s)"


@pytest.fixture
def dsns(state_db: str, data_db: str, queue_db: str) -> dict[Database, str]:
    return {"state": state_db, "data": data_db, "queue": queue_db}


def waiting(begun: threading.Event) -> BackupProgress:
    """Sets the event when the backup waits for writers."""
    return BackupProgress(lambda _: begun.set(), threading.Event())


def sources(dsns: dict[Database, str], progress: BackupProgress) -> list[str]:
    with take_snapshots(dsns, progress) as snapshots:
        return [key for (key,) in snapshots["data"].rows("SELECT source_key FROM trace_meta.sources")]


def test_snapshots_wait_for_a_writer_of_data_postgres_and_have_what_it_wrote(dsns: dict[Database, str]) -> None:
    begun = threading.Event()
    progress = waiting(begun)
    with ThreadPoolExecutor(1) as thread, psycopg.connect(dsns["data"]) as writer:
        writer.execute(WRITE, ("before",))
        found = thread.submit(sources, dsns, progress)
        assert begun.wait(SECONDS)
        writer.commit()
        assert found.result(SECONDS) == ["before"]


def test_writers_go_on_while_snapshots_are_read_and_are_not_seen_in_them(dsns: dict[Database, str]) -> None:
    with take_snapshots(dsns, waiting(threading.Event())) as snapshots:
        with psycopg.connect(dsns["data"]) as writer:
            writer.execute(WRITE, ("after",))
        with psycopg.connect(dsns["state"]) as state:
            state.execute("INSERT INTO orgs (name, slug) VALUES ('After', 'after')")
        assert snapshots["data"].rows("SELECT source_key FROM trace_meta.sources") == []
        assert snapshots["state"].rows("SELECT slug FROM orgs WHERE slug = 'after'") == []


def test_a_backup_that_waits_for_a_writer_can_be_canceled(dsns: dict[Database, str]) -> None:
    begun = threading.Event()
    progress = waiting(begun)
    with ThreadPoolExecutor(1) as thread, psycopg.connect(dsns["data"]) as writer:
        writer.execute(WRITE, ("before",))
        found = thread.submit(sources, dsns, progress)
        assert begun.wait(SECONDS)
        progress.canceled.set()
        with pytest.raises(Canceled):
            found.result(SECONDS)


def test_a_backup_of_a_system_with_another_queue_is_refused_and_leaves_nothing(
    dsns: dict[Database, str], tmp_path: Path
) -> None:
    external = replace(ExternalDsns.of(Settings(home=tmp_path / "home")), state="s", data="d", queue_is_sqs=True)
    assert owner_dsns(external, None, None)["queue"] == ""
    system = Running(Home(tmp_path / "home"), {**dsns, "queue": ""}, DiskObjects(tmp_path / "objects"))
    with pytest.raises(BadInput, match="on SQS"):
        make_backup(system, tmp_path / "backup", waiting(threading.Event()))
    assert not (tmp_path / "backup").exists()
