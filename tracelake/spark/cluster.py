"""The settings of executors on a cluster, as Spark spells them."""

from __future__ import annotations

from typing import Final

from tracelake.settings import SparkSettings

IDLE_SECONDS: Final = 60


def cluster_conf(settings: SparkSettings) -> dict[str, str]:
    """Of what is set; the rest is left to `spark-defaults.conf`. Empty where Spark has no executors of ours."""
    values = {
        "spark.driver.host": settings.driver_host,
        "spark.executor.memory": settings.executor_memory,
        "spark.executor.cores": settings.executor_cores,
        "spark.kubernetes.container.image": settings.kubernetes_image,
        "spark.kubernetes.namespace": settings.kubernetes_namespace,
        "spark.kubernetes.authenticate.executor.serviceAccountName": settings.kubernetes_service_account,
        "spark.kubernetes.executor.podTemplateFile": settings.kubernetes_pod_template,
        "spark.kubernetes.driver.pod.name": settings.kubernetes_driver_pod,
        **_allocation(settings),
    }
    return {key: str(value) for key, value in values.items() if value is not None}


def _allocation(settings: SparkSettings) -> dict[str, str | int]:
    """Executors that come and go, without the shuffle service that only some clusters have."""
    if settings.max_executors is None:
        return {}
    idle = f"{settings.executor_idle_seconds or IDLE_SECONDS}s"
    return {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": settings.min_executors,
        "spark.dynamicAllocation.maxExecutors": settings.max_executors,
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": idle,
        # Else one that ever shuffled would stay until Java collects the garbage of the driver, hours later.
        "spark.dynamicAllocation.shuffleTracking.timeout": idle,
    }
