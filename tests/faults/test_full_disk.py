"""A full disk is a typed 503 that names it, and what was acknowledged is stored. When there is space, all goes on.

The state database lies in a tablespace on a small file system of its own, which the test fills.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.faults.backends import fill, small_disk
from tests.support.postgres import RunningServer
from tests.support.spark.session import a_session
from tests.support.systems.gateway import DAG, System
from tests.support.systems.gateway import system as gateway_system
from tests.support.systems.processes import System as Processes
from tests.support.systems.processes import until_ready, worker_client
from tests.support.systems.walk import walking, working
from tests.support.tls import https, ready, tls_in
from tests.support.verbs import trigger
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.access.object_names import ObjectName
from tracelake.domain.error_codes import is_platform_fault
from tracelake.errors import DiskFull
from tracelake.operators.api.outcome import Outcome
from tracelake.query.audit import CURRENT, Audit, read_rows
from tracelake.query.failures import translated_errors
from tracelake.runtime.listeners import Listener, listener_app, open_listeners
from tracelake.spark.failures import spark_failures
from tracelake.store.migrate import Database
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.queries import AuditRow
from tracelake.wire.task.lifecycle import TaskPayload
from tracelake.worker.run_task import run_pure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio
TRIGGER = "/v1/dags/shop/jobs/fetch/trigger"
ROWS = 100_000
MANY = 1000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


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
    await trace.deploy("shop", DAG)
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


async def test_a_full_disk_is_named_by_every_listener_until_there_is_space(disk: Path, tmp_path: Path) -> None:
    """Also by one that has no database, such as the runner's, which unpacks user code."""

    async def write(request: Request) -> Response:
        (disk / request.query_params["file"]).write_bytes(b"0" * 100_000)
        return Response(b"{}")

    tls = tls_in(tmp_path)
    listener = Listener("d", "127.0.0.1", 0, listener_app([Route("/write", write)], ready))
    async with open_listeners([listener], tls) as at, https(at["d"], tls.ca) as http:
        ballast = fill(disk)
        refused = await http.get("/write", params={"file": "x"})
        error = refused.json()["error"]
        assert (refused.status_code, refused.headers["retry-after"], error["code"]) == (503, "10", "disk_full")
        assert error["message"] == "the disk of this process is full: nothing was stored"
        missing = await http.get("/write", params={"file": "no/folder"})
        assert missing.status_code == 500, "any other error of the system is a fault of ours"
        ballast.unlink()
        assert (await http.get("/write", params={"file": "x"})).is_success


async def test_a_query_is_refused_if_its_audit_row_does_not_fit_onto_the_disk(disk: Path) -> None:
    """The last row that fits in part is not left there as half a line, to which the next would be joined."""
    folder, noted = disk / "audit", list[UUID]()
    audit = Audit(folder, cast("DispatcherClient", None))  # nothing is sent

    def note() -> None:
        row = AuditRow(id=uuid4(), org_id=uuid4(), asked_at=NOW, sql_sha256="0" * 64, datasets=[], verdict="answered")
        audit.note(row)
        noted.append(row.id)

    note()
    ballast = fill(disk)
    with pytest.raises(DiskFull, match="the disk of the query audit is full"):  # noqa: PT012 - one of many
        while len(noted) < MANY:
            note()
    assert len(noted) > 1, "there was room for some"
    ballast.unlink()
    note()
    assert [row.id for row in read_rows(folder / CURRENT)] == noted


async def test_a_full_disk_of_a_worker_costs_its_task_none_of_its_own_attempts(
    disk: Path, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    def write(task: TaskPayload) -> Outcome:
        (disk / "x").write_bytes(b"0" * 100_000)
        return run_pure(task)

    ballast = fill(disk)
    async with walking(state_db, queue_db, tmp_path) as walk, working(walk.worker("w", write)):
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await walk.until("work", ["Failed"])
        assert await walk.control.pool.fetchval("SELECT fault::text FROM task_attempts") == "platform"
        ballast.unlink()
        await walk.control.pool.execute("UPDATE tasks SET next_retry_at = now() WHERE status = 'Failed'")
        walk.control.after_commit.leases.notify()
        await walk.until("work", ["Completed"])


def test_a_full_disk_below_spark_is_a_platform_error_that_names_it_until_there_is_space(disk: Path) -> None:
    """For a task as for a query: neither is at fault."""
    with a_session(disk) as spark:
        ballast = fill(disk)
        for translated in (spark_failures("/config/query"), translated_errors({}, 1024)):
            with pytest.raises(DiskFull, match="the disk of Spark's work folder is full") as refused, translated:
                shuffle(spark)
            assert is_platform_fault(refused.value.code, retryable=refused.value.retryable)
        ballast.unlink()
        assert shuffle(spark) == ROWS


def shuffle(spark: SparkSession) -> int:
    """Rows that are exchanged between two stages are written to Spark's work folder."""
    return spark.range(ROWS).repartition(3, "id").distinct().count()


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
