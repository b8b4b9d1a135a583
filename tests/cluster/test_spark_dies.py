"""A worker whose own Spark dies ends, so that it is started anew; what it had in hand is not called failed.

About 15 s on two free cores.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil
import pytest

from tests.cluster.test_connect import HOLD, LOAD
from tests.cluster.trace_worker import trace_worker
from tests.operators.rig import Rig
from tests.walk.walking import walking
from trace_platform.operators.context import Resources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio

SECONDS = 400
PATIENT = HOLD.replace("heartbeat_interval_seconds: 1", "heartbeat_timeout_seconds: 900")


@pytest.mark.timeout(1200)
async def test_when_spark_is_killed_the_worker_ends_and_its_task_is_left_to_another(
    state_db: str, queue_db: str, data_db: str, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    for folder in (tmp_path / "files" / "in", marks):
        folder.mkdir(parents=True)
    (tmp_path / "files" / "in" / "a.csv").write_text("id\n1\n")
    local = {"TRACE_SPARK__MASTER": "local[1]", "TRACE_SPARK__DRIVER_MEMORY": "512m"}
    async with walking(state_db, queue_db, tmp_path) as walk:
        rig = Rig(walk, cast("SparkSession", None), Resources(), tmp_path)  # Spark is elsewhere
        await rig.deploy(LOAD)
        async with trace_worker(walk, tmp_path, (queue_db, data_db), local, code=1) as pid:
            await rig.trigger("load", "go")
            await rig.settled()
            await rig.deploy(PATIENT.replace("FOLDER", str(marks)))
            await rig.trigger("hold", "go")
            async with asyncio.timeout(SECONDS):
                while not list(marks.glob("held.*")):  # noqa: ASYNC110 - it is another process that is watched
                    await asyncio.sleep(0.05)
            (jvm,) = [one for one in psutil.Process(pid).children() if one.name() == "java"]
            jvm.kill()
        (task,) = await rig.fetch(
            "SELECT t.status::text, t.error_message FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'held'"
        )
        assert dict(task) == {"status": "Running", "error_message": None}, "its lease runs out, and it is queued again"
