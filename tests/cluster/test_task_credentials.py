"""Executors of a real standalone cluster read and write S3 with the keys of each task, and there are no others.

About 45 s on two free cores: the S3 server, a master, a Spark worker and `trace worker` are processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.spark.cluster import SparkCluster, trace_worker
from tests.support.spark.held_rows import COMPLETED, ENDED, every_row_once, let_go, with_numbers
from tests.support.systems.on_s3 import on_s3
from tests.support.systems.walk import walking
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.store.migrate import Database

pytestmark = pytest.mark.anyio


@pytest.mark.timeout(1800)
async def test_a_dag_runs_on_executors_of_a_worker_whose_own_keys_open_nothing(
    cluster: SparkCluster, seaweedfs: SeaweedFS, clone: Callable[[Database], str], tmp_path: Path
) -> None:
    queue_db, data_db = clone("queue"), clone("data")
    master = cluster.master()
    cluster.worker(master)
    settings = {
        **cluster.settings(master),
        "TRACE_SPARK__EXECUTOR_MEMORY": "512m",
        "TRACE_WORKER__TASK_CREDENTIALS": "true",
        "TRACE_OBJECTS__BACKEND": "s3",
        "TRACE_OBJECTS__ENDPOINT": seaweedfs.endpoint,
        "TRACE_OBJECTS__ACCESS_KEY_ID": "nobody",
        "TRACE_OBJECTS__SECRET_ACCESS_KEY": "nothing",
    }
    async with walking(clone("state"), queue_db, tmp_path, **on_s3(seaweedfs, tmp_path)) as walk:
        system = await with_numbers(walk, tmp_path)
        async with trace_worker(walk, tmp_path, (queue_db, data_db), settings):
            await system.trigger("load", "go")
            await system.settled()
            let_go(system)
            await system.trigger("hold", "go")
            await system.until(ENDED, 1)
        await every_row_once(system, [COMPLETED])
        (location,) = {row["location"] for row in await system.fetch(WHERE)}
        assert location.startswith("s3://trace/")


WHERE = """
SELECT p.location FROM partition_versions p JOIN datasets d ON d.id = p.dataset_uuid
 WHERE d.name = 'held' AND p.valid_to IS NULL
"""
