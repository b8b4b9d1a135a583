"""A worker whose Spark dies ends, so that it is started anew; the tasks that it was running are not failed.

About 15 s for its own Spark, and 30 s for a Connect server that is started again, on two free cores.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil
import pytest

from tests.support.spark.cluster import HOLD, LOAD, ConnectServer, trace_worker
from tests.support.systems.operators import OperatorSystem
from tests.support.systems.walk import Walk, walking
from tests.support.waiting import until
from tracelake.operators.api.context import Resources
from tracelake.store.migrate import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio

LONG_HEARTBEAT_TIMEOUT = HOLD.replace(
    "max_attempts: 1, heartbeat_interval_seconds: 1", "heartbeat_timeout_seconds: 900"
)


HELD = "SELECT t.status::text, t.error_message FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'held'"


@pytest.mark.timeout(1200)
async def test_when_spark_is_killed_the_worker_ends_and_its_task_is_left_to_another(
    state_db: str, queue_db: str, data_db: str, tmp_path: Path
) -> None:
    local = {"TRACE_SPARK__MASTER": "local[1]", "TRACE_SPARK__DRIVER_MEMORY": "512m"}
    async with walking(state_db, queue_db, tmp_path) as walk:
        system = rig_in(walk, tmp_path)
        async with trace_worker(walk, tmp_path, (queue_db, data_db), local, code=1) as pid:
            await until_rows_are_held(system)
            (jvm,) = [child for child in psutil.Process(pid).children() if child.name() == "java"]
            jvm.kill()
        await is_left_to_another(system)


@pytest.mark.long  # the same with a Spark elsewhere
@pytest.mark.timeout(1200)
async def test_when_a_connect_server_is_started_again_the_worker_ends_and_the_next_one_does_its_task(
    connect: ConnectServer, clone: Callable[[Database], str], tmp_path: Path
) -> None:
    queue_db, data_db = clone("queue"), clone("data")
    far = {"TRACE_SPARK__REMOTE": connect.address}
    async with walking(clone("state"), queue_db, tmp_path) as walk:
        system = rig_in(walk, tmp_path)
        async with trace_worker(walk, tmp_path, (queue_db, data_db), far, code=1):
            await until_rows_are_held(system)
            connect.kill()
            connect.start_again()
        await is_left_to_another(system)
        (tmp_path / "marks" / "go").touch()
        await walk.control.pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
        walk.control.after_commit.leases.notify()
        await system.until("SELECT EXISTS (SELECT FROM tasks WHERE status = 'Failed')")
        await walk.control.pool.execute("UPDATE tasks SET next_retry_at = now() WHERE status = 'Failed'")
        walk.control.after_commit.leases.notify()
        async with trace_worker(walk, tmp_path, (queue_db, data_db), far):
            await system.until("SELECT EXISTS (SELECT FROM tasks WHERE status = 'Completed' AND attempt = 2)")
        assert [row["ten"] for row in await system.rows("held")] == [10]


def rig_in(walk: Walk, folder: Path) -> OperatorSystem:
    for item in (folder / "files" / "in", folder / "marks"):
        item.mkdir(parents=True)
    (folder / "files" / "in" / "a.csv").write_text("id\n1\n")
    return OperatorSystem(walk, cast("SparkSession", None), Resources(), folder)  # Spark is elsewhere


async def until_rows_are_held(system: OperatorSystem) -> None:
    """In a Python worker of Spark's."""
    marks = system.folder / "marks"
    await system.deploy(LOAD)
    await system.trigger("load", "go")
    await system.settled()
    await system.deploy(LONG_HEARTBEAT_TIMEOUT.replace("FOLDER", str(marks)))
    await system.trigger("hold", "go")
    await until(lambda: list(marks.glob("held.*")), "rows are held in a Python worker")


async def is_left_to_another(system: OperatorSystem) -> None:
    (task,) = await system.fetch(HELD)
    assert dict(task) == {"status": "Running", "error_message": None}, "its lease runs out, and it is queued again"
    assert await system.partitions("held") == []
