"""`trace up` with an S3 server of its own: started, configured, supervised; its keys nowhere at rest. 90 s."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.lite.test_up import System, wait_until

DAGS = Path(__file__).parents[2] / "dags"
SERVER = "seaweedfs"


@pytest.fixture
def system() -> Iterator[System]:
    folder = Path(tempfile.mkdtemp(prefix="trace-up-s3-"))
    env = {"TRACE_OBJECTS__BACKEND": SERVER, "TRACE_WORKER__FILES_FOLDER": str(DAGS / "data")}
    made = System(folder, "--without", "sink,query,scheduler", env=env)
    yield made
    if made.process and made.process.poll() is None:
        made.stop()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_system_on_seaweedfs_from_its_start_over_a_crash_to_the_next_start(system: System) -> None:
    system.start()
    assert system.processes()[SERVER]["state"] == "ready"
    listens_on_this_machine_only(system)
    deployed = system.trace("dag", "deploy", str(DAGS / "files_quickstart.yaml"), "--activate")
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    made_by(system, cursor=1)
    assert not (system.home / "objects").exists()

    was = int(system.processes()[SERVER]["pid"])
    os.kill(was, signal.SIGKILL)
    wait_until(lambda: is_another(system, was))
    made_by(system, cursor=2)  # reads what was written before
    no_key_is_at_rest(system)
    assert system.stop() == 0

    system.start()
    made_by(system, cursor=3)


def made_by(system: System, cursor: int) -> None:
    """The example runs through once more: files read, checked, joined."""
    asked = system.trace("trigger", "files_quickstart", "load", "--cursor", str(cursor))
    assert asked.returncode == 0, asked.stdout + asked.stderr
    wait_until(lambda: done(system) >= cursor * 2, seconds=240)  # two files of sales, so it is made twice each time


def done(system: System) -> int:
    token = system.ready()["user_token"]
    tasks = system.get("gateway", "/v1/tasks?limit=200", Authorization=f"Bearer {token}").json()["tasks"]
    failed = [task for task in tasks if task["status"] == "Failed" and not task.get("next_retry_at")]
    assert not failed, failed
    return sum(task["job"] == "sales_by_product" and task["status"] == "Completed" for task in tasks)


def is_another(system: System, was: int) -> bool:
    now = system.processes()[SERVER]
    return now["state"] == "ready" and now["pid"] not in (None, was)


def listens_on_this_machine_only(system: System) -> None:
    server = psutil.Process(int(system.processes()[SERVER]["pid"]))
    places = {one.laddr.ip for one in server.net_connections(kind="inet") if one.status == psutil.CONN_LISTEN}
    assert places == {"127.0.0.1"}


def no_key_is_at_rest(system: System) -> None:
    """What the server was handed in memory is in no file of the home, no argument and no environment."""
    pid = int(system.processes()[SERVER]["pid"])
    secrets = list(handed_to(pid))
    assert len(secrets) >= 5
    held = b"".join(path.read_bytes() for path in system.home.rglob("*") if path.is_file() and not path.is_symlink())
    for one in system.processes().values():
        for what in ("cmdline", "environ"):
            held += (
                Path(f"/proc/{one['pid']}/{what}").read_bytes()
                if one["name"] != "dispatcher" or what == "cmdline"
                else b""
            )
    assert not [secret for secret in secrets if secret.encode() in held]


def handed_to(pid: int) -> Iterator[str]:
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        if "memfd:seaweedfs" in str(handle.readlink()):
            document = json.loads(handle.read_text())
            yield from (one["credentials"][0]["secretKey"] for one in document.get("identities", ()))
            yield from (document[part]["signingKey"] for part in document if part == "sts")
