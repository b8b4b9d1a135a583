"""A full disk is a typed 503 that names it, and what was acknowledged is stored. When there is space, all goes on.

The state database lies in a tablespace on a small file system of its own, which the test fills.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest

from tests.faults.test_connections import until_ready, worker_client
from tests.support.faults.small_disk import fill, small_disk
from tests.support.postgres import RunningServer
from tests.support.systems.gateway import DAG, System
from tests.support.systems.gateway import system as gateway_system
from tests.support.systems.processes import System as Processes
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.object_names import ObjectName
from tracelake.errors import DiskFull
from tracelake.store.migrate import Database

pytestmark = pytest.mark.anyio
TRIGGER = "/v1/dags/shop/jobs/fetch/trigger"


@pytest.fixture
def disk() -> Iterator[Path]:
    with small_disk(64) as made:
        yield made


def _make_folder(folder: Path, *, like: Path) -> None:
    folder.mkdir()
    os.chown(folder, like.stat().st_uid, like.stat().st_gid)


@pytest.fixture
async def trace(
    disk: Path, postgres: RunningServer, template: Callable[[Database], str], queue_db: str, tmp_path: Path
) -> AsyncIterator[System]:
    name, folder = f"full_{uuid4().hex[:8]}", disk / "space"
    _make_folder(folder, like=postgres.cluster.directory)
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"CREATE TABLESPACE {name} LOCATION '{folder}'".encode())
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {template('state')} TABLESPACE {name}".encode())
        try:
            async with gateway_system(postgres.dsn(name), queue_db, tmp_path) as made:
                yield made
        finally:
            admin.execute(f"DROP DATABASE {name} (FORCE)".encode())
            admin.execute(f"DROP TABLESPACE {name}".encode())


async def test_a_full_disk_of_postgres_is_a_503_that_names_it_until_there_is_space(trace: System, disk: Path) -> None:
    made = await trace.got("acme|writer", "POST", "/v1/dags/shop/versions", json={"yaml": DAG})
    body = {"dag_version_id": made["dag_version_id"]}
    await trace.got("acme|writer", "PUT", "/v1/dags/shop/active", json=body)
    ballast, accepted, refused = fill(disk), 0, httpx.Response(200)
    while refused.is_success and accepted < 2000:
        refused = await trace.ask("acme|writer", "POST", TRIGGER, json={"cursor": accepted})
        accepted += refused.is_success
    said = refused.json()["error"]
    assert (refused.status_code, said["code"], said["retryable"]) == (503, "disk_full", True)
    assert said["message"] == "the disk of the Postgres server is full: nothing was stored"
    assert "No space left on device" in said["where"]
    assert refused.headers["retry-after"] == "10"
    ballast.unlink()
    await trace.got("acme|writer", "POST", TRIGGER, json={"cursor": accepted})
    stored = await trace.control.pool.fetchval("SELECT count(*) FROM events")
    assert stored == accepted + 1, "what was acknowledged is stored, and nothing else"


async def test_a_full_disk_of_the_object_store_is_named_until_there_is_space(disk: Path) -> None:
    objects, name = DiskObjects(disk / "objects"), ObjectName.parse("s3://trace/some/object")
    objects.put(ObjectName.parse("s3://trace/some/other"), b"small")
    ballast = fill(disk)
    with pytest.raises(DiskFull, match="the disk of the object store is full") as refused:
        objects.put(name, b"0" * 100_000)
    assert refused.value.where == str(name)
    assert objects.head(name) is None
    ballast.unlink()
    objects.put(name, b"0" * 100_000)
    assert objects.get(name) == b"0" * 100_000


async def test_a_log_that_cannot_be_written_breaks_no_answer(system: Processes) -> None:
    (system.folder / "0-dispatcher.log").symlink_to("/dev/full")
    task, internal = system.listeners[0]
    more = {
        "state": {"dsn": system.state_dsn},
        "dispatcher": {"task_port": task, "internal_port": internal},
        "log": {"level": "debug"},  # every answer is a line
    }
    child = system._start("dispatcher", more, {"point": None, "nth": 1, "how": "kill"}, None)
    async with worker_client(system) as http:
        await until_ready(http)
        nothing = await http.get("/internal/v1/dags/nothing")
        assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "not_found")
        assert (await http.get("/internal/v1/dags")).json() == {"dags": []}
    assert child.alive()
