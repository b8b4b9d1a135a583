"""`trace up` with an S3 server of its own: started, configured, supervised; its keys nowhere at rest. 50 s."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import ROOT
from tests.support.systems.trace_up import TraceUp, short_run
from tests.support.waiting import wait_until
from tracelake.adapters.objects_s3 import S3Objects
from tracelake.domain.access.object_names import Folder

DAGS = ROOT / "dags"
SERVER = "seaweedfs"


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="trace-up-s3-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@contextmanager
def up(folder: Path, without: str) -> Iterator[TraceUp]:
    env = {"TRACE_OBJECTS__BACKEND": SERVER, "TRACE_WORKER__FILES_FOLDER": str(DAGS / "data")}
    system = short_run(folder, "--without", without, env={**env, "TRACE_UP__WATCHDOG_SECONDS": "60"})
    try:
        system.start()
        yield system
    finally:
        if system.is_running():
            assert system.stop() == 0


@pytest.mark.timeout(900)
def test_a_system_on_seaweedfs_from_its_start_over_a_crash_to_the_next_start(folder: Path) -> None:
    with up(folder, "sink,query,scheduler") as system:
        assert system.processes()[SERVER]["state"] == "ready"
        listens_on_this_machine_only(system)
        deployed = system.trace("dag", "deploy", str(DAGS / "files_quickstart.yaml"), "--activate")
        assert deployed.returncode == 0, deployed.stdout + deployed.stderr
        made_by(system)
        assert not (system.home / "objects").exists()
        objects = stored_files(system)
        assert len([name for name in objects if name.endswith(".parquet")]) >= 6
        no_key_is_at_rest(system)

        was = int(system.processes()[SERVER]["pid"])
        os.kill(was, signal.SIGKILL)
        wait_until(lambda: is_another(system, was), "the object store is restarted")
        assert stored_files(system) == objects
        keys = set(secrets_given_to(int(system.processes()[SERVER]["pid"])))

    with up(folder, "worker,sink,query,scheduler") as system:
        assert stored_files(system) == objects
        port = system.processes()[SERVER]["listeners"][0].rpartition(":")[2]
        assert list(Path("/tmp").glob(f"seaweedfs-*-{port}.sock"))  # noqa: S108 - where the server puts them
        assert not keys & set(secrets_given_to(int(system.processes()[SERVER]["pid"])))
    assert not list(Path("/tmp").glob(f"seaweedfs-*-{port}.sock"))  # noqa: S108


def stored_files(system: TraceUp) -> dict[str, bytes]:
    """Every object of the datasets, read with the key that the Dispatcher was given."""
    server = system.processes()[SERVER]
    key = next(identity for identity in identities(int(server["pid"])) if identity["name"] == "platform")[
        "credentials"
    ][0]
    store = S3Objects("us-east-1", server["listeners"][0], key["accessKey"], key["secretKey"])
    return {str(item.name): store.get(item.name) for item in store.objects(Folder.parse("s3://trace/datasets/"))}


def made_by(system: TraceUp) -> None:
    """The example runs through: files read, checked, joined."""
    triggered = system.trace("trigger", "files_quickstart", "load")
    assert triggered.returncode == 0, triggered.stdout + triggered.stderr
    wait_until(lambda: is_done(system), "the tasks are done")


def is_done(system: TraceUp) -> bool:
    """Every task has ended, and the join was made: for both files of sales, once or twice (`mode: full`)."""
    token = system.ready()["user_token"]
    tasks = system.get("gateway", "/v1/tasks?limit=200", Authorization=f"Bearer {token}").json()["tasks"]
    failed = [task for task in tasks if task["status"] == "Failed" and not task.get("next_retry_at")]
    assert not failed, failed
    states = [task["status"] for task in tasks if task["job"] == "sales_by_product"]
    return len(states) >= 2 and "Completed" in states and set(states) <= {"Completed", "Canceled"}


def is_another(system: TraceUp, was: int) -> bool:
    now = system.processes()[SERVER]
    return now["state"] == "ready" and now["pid"] not in (None, was)


def listens_on_this_machine_only(system: TraceUp) -> None:
    server = psutil.Process(int(system.processes()[SERVER]["pid"]))
    places = {
        connection.laddr.ip
        for connection in server.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert places == {"127.0.0.1"}


def no_key_is_at_rest(system: TraceUp) -> None:
    """What the server was given in memory is in no file of the home, no argument and no environment."""
    pid = int(system.processes()[SERVER]["pid"])
    secrets = list(secrets_given_to(pid))
    assert len(secrets) >= 5
    held = b"".join(path.read_bytes() for path in system.home.rglob("*") if path.is_file() and not path.is_symlink())
    for process in system.processes().values():
        for what in ("cmdline", "environ"):
            held += (
                Path(f"/proc/{process['pid']}/{what}").read_bytes()
                if process["name"] != "dispatcher" or what == "cmdline"
                else b""
            )
    assert not [secret for secret in secrets if secret.encode() in held]


def secrets_given_to(pid: int) -> Iterator[str]:
    yield from (identity["credentials"][0]["secretKey"] for identity in identities(pid))
    yield from (document["sts"]["signingKey"] for document in documents(pid) if "sts" in document)


def identities(pid: int) -> list[dict[str, Any]]:
    return [item for document in documents(pid) for item in document.get("identities", ())]


def documents(pid: int) -> Iterator[dict[str, Any]]:
    """What it holds open of files in memory."""
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it opens and closes others all the time
            if "memfd:seaweedfs" in str(handle.readlink()):
                yield json.loads(handle.read_text())
