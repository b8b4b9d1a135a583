"""Where Spark runs: in the process, on a cluster's executors, or behind a Spark Connect server."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from pydantic import SecretStr, field_validator, model_validator

from tracelake.settings.base import Group, setting

KUBERNETES: Final = "k8s://"
JVM_SIZE: Final = r"^\d+[mg]$"
NAME: Final = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
"""Of objects in Kubernetes."""
OF_EXECUTORS: Final = (
    *("driver_host", "executor_memory", "executor_cores"),
    *("min_executors", "max_executors", "executor_idle_seconds"),
)
OF_KUBERNETES: Final = (
    *("kubernetes_image", "kubernetes_namespace", "kubernetes_service_account"),
    *("kubernetes_pod_template", "kubernetes_driver_pod"),
)


class SparkSettings(Group):
    """Spark."""

    master: str = setting("local[*]", "The Spark master; `local[*]` is this machine, all cores.")
    remote: str | None = setting(
        None, "A Spark Connect server in place of a master.", unit="sc:// URL", pattern=r"^sc://"
    )
    remote_token: SecretStr | None = setting(None, "The token for the Spark Connect server.")
    python: Path | None = setting(
        None,
        "The Python of a cluster's executors, by its path there, with the packages Trace needs; ours is sent to them.",
        unit="file",
    )
    driver_memory: str = setting("1g", "Heap of the process that drives Spark.", unit="JVM size", pattern=JVM_SIZE)
    shuffle_partitions: int = setting(4, "Partitions after a shuffle; about twice the cores.", unit="count", ge=1)
    quick_compiler: bool = setting(
        default=False,
        why="Java compiles quickly and no better, for short runs: what moves many rows takes twice as long or more.",
    )

    driver_host: str | None = setting(
        None, "The address of this machine that executors of a cluster connect to; unset: the name of the machine."
    )
    executor_memory: str | None = setting(
        None, "Heap of an executor; unset: the cluster's default.", unit="JVM size", pattern=JVM_SIZE
    )
    executor_cores: int | None = setting(
        None, "Cores of an executor; unset: the cluster's default.", unit="count", ge=1, le=512
    )
    min_executors: int = setting(
        0, "Executors that stay when there is no work; needs max_executors.", unit="count", ge=0
    )
    max_executors: int | None = setting(
        None,
        "Executors at most, of each process that runs Spark: they are started and ended with the work. Unset: the"
        " cluster's default.",
        unit="count",
        ge=1,
    )
    executor_idle_seconds: int | None = setting(
        None,
        "An executor without work is ended after so long, also if it stores shuffled rows, which are then made again"
        " where they are needed; unset: 60; needs max_executors.",
        unit="s",
        ge=1,
    )
    kubernetes_image: str | None = setting(
        None, "The image of executors on Kubernetes: Spark of this version, and the packages that Trace needs."
    )
    kubernetes_namespace: str | None = setting(
        None, "The namespace of executors on Kubernetes; unset: `default`.", pattern=NAME
    )
    kubernetes_service_account: str | None = setting(
        None,
        "The service account of executors on Kubernetes: their rights. Unset: that of the namespace.",
        pattern=NAME,
    )
    kubernetes_pod_template: Path | None = setting(
        None,
        "A file with the pod of executors on Kubernetes, for what has no setting: nodes, volumes, labels.",
        unit="file",
    )
    kubernetes_driver_pod: str | None = setting(
        None,
        "The pod in Kubernetes in which this process runs; when it is deleted, Kubernetes deletes the executors too.",
        pattern=NAME,
    )

    @field_validator("remote")
    @classmethod
    def _keeps_no_token(cls, remote: str | None) -> str | None:
        if remote and ("token=" in remote.lower() or "@" in remote):
            raise ValueError("an address is shown to people: a token goes into spark.remote_token")
        return remote

    @property
    def remote_url(self) -> str | None:
        """With the token, in Spark's syntax."""
        if self.remote is None or self.remote_token is None:
            return self.remote
        slash = "" if "/" in self.remote.removeprefix("sc://") else "/"
        return f"{self.remote}{slash};token={self.remote_token.get_secret_value()}"

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        """A cluster's settings are refused where there are no executors of ours, and Kubernetes' on another cluster."""
        has_executors = self.master != "local" and not self.master.startswith("local[")
        on_kubernetes = self.master.startswith(KUBERNETES)
        self._refuse("the spark.master of a cluster", () if has_executors else OF_EXECUTORS)
        self._refuse(f"a spark.master that begins with {KUBERNETES}", () if on_kubernetes else OF_KUBERNETES)
        if self.max_executors is None:
            self._refuse("spark.max_executors", ("min_executors", "executor_idle_seconds"))
        elif self.min_executors > self.max_executors:
            raise ValueError("min_executors must not be larger than max_executors")
        return self

    def _refuse(self, needed: str, names: tuple[str, ...]) -> None:
        given = [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
        if given:
            raise ValueError(f"{', '.join(given)} has no effect without {needed}")
