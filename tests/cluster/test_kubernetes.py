"""Executors as pods, by settings: what Spark asks of Kubernetes, and a task whose pods come, are lost, and go.

There is no Kubernetes here. Spark's own scheduler talks to as much of its API as it uses, and a pod is a process. About
40 s on two free cores.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark.cluster import SparkCluster, family_of, kill, trace_worker
from tests.support.spark.held_rows import COMPLETED, ENDED, every_row_once, let_go, until_held_below, with_numbers
from tests.support.spark.kubernetes import kubernetes
from tests.support.systems.walk import walking
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

TEMPLATE = """
apiVersion: v1
kind: Pod
metadata: {labels: {team: data}}
spec: {nodeSelector: {disk: fast}}
"""


@pytest.mark.timeout(1800)
async def test_executors_are_pods_of_the_settings_and_one_that_is_lost_is_replaced_under_a_task(
    cluster: SparkCluster, state_db: str, queue_db: str, data_db: str, tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text(TEMPLATE)
    (tmp_path / "pods").mkdir()
    async with (
        kubernetes(tmp_path / "pods", cluster.java, cluster.python, "trace") as api,
        walking(state_db, queue_db, tmp_path) as walk,
    ):
        system = await with_numbers(walk, tmp_path)
        settings = {
            **cluster.settings(f"k8s://{api.address}"),
            "TRACE_SPARK__DRIVER_HOST": "127.0.0.1",
            "TRACE_SPARK__EXECUTOR_MEMORY": "512m",
            "TRACE_SPARK__EXECUTOR_CORES": "1",
            "TRACE_SPARK__MAX_EXECUTORS": "2",
            "TRACE_SPARK__EXECUTOR_IDLE_SECONDS": "1",
            "TRACE_SPARK__KUBERNETES_IMAGE": "registry.example/trace-executor:1",
            "TRACE_SPARK__KUBERNETES_NAMESPACE": "trace",
            "TRACE_SPARK__KUBERNETES_SERVICE_ACCOUNT": "trace-executor",
            "TRACE_SPARK__KUBERNETES_POD_TEMPLATE": str(tmp_path / "pod.yaml"),
        }
        async with trace_worker(walk, tmp_path, (queue_db, data_db), settings):
            await system.trigger("load", "go")
            await system.settled()
            await system.trigger("hold", "go")
            await until(lambda: len(api.pids()) == 2, "two pods run")
            lost, kept = api.pids()
            await until_held_below(system, [lost, kept])
            kill(family_of(lost))
            (new,) = await until(lambda: [pid for pid in api.pids() if pid != kept], "another pod is in its place")
            await until_held_below(system, [kept, new])
            let_go(system)
            await system.until(ENDED, 1)
            await until(lambda: not api.pods, "pods without work are deleted")
        await every_row_once(system, [COMPLETED])
    for pod in api.specs:
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        assert spec["serviceAccountName"] == "trace-executor"
        assert spec["nodeSelector"] == {"disk": "fast"}
        assert pod["metadata"]["labels"]["team"] == "data"
        assert container["image"] == "registry.example/trace-executor:1"
        variables = {item["name"]: item.get("value") for item in container["env"]}
        assert (variables["SPARK_EXECUTOR_MEMORY"], variables["SPARK_EXECUTOR_CORES"]) == ("512m", "1")
        assert container["resources"]["requests"]["cpu"] == "1"
