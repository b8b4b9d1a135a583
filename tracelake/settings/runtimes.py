"""Where tasks run: each runtime by its name, those that there are without being set, and what job runs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import model_validator

from tracelake.settings.base import URL, Group, setting

APPLICATION: Final = r"^[0-9a-z]{1,64}$"
"""The id of an application of EMR Serverless."""


def _most_in_flight() -> Any:
    return setting(
        None,
        "How many of its tasks may be woken or run at once, of all jobs and organisations; always-on sources do not"
        " count; unset: no limit.",
        unit="tasks",
        ge=1,
        le=1000000,
    )


class RuntimeSettings(Group):
    """Where tasks run (`runtime:` in YAML): how they get there, and the defaults of the YAML's fields."""

    invoker: Literal["in_process", "queue", "function", "job_run"] = setting(
        "queue",
        "How a task gets there: run by the Dispatcher, woken on a queue, a function is called with it, or a job run of"
        " EMR Serverless is started for it.",
    )
    queue: str | None = setting(
        None,
        "The queue on which its workers wait; needed by the invoker `queue`. Tasks of `bulk` priority have another,"
        " whose name is this one with `-bulk`.",
        pattern=r"^[A-Za-z0-9_-]{1,59}$",
    )
    application: str | None = setting(
        None,
        "The id of the application of EMR Serverless in which its job runs start; only for the invoker `job_run`.",
        pattern=APPLICATION,
    )
    untrusted: bool = setting(
        default=False,
        why="It runs code that is not ours: its jobs get no secrets and do not write to Postgres directly.",
    )
    heartbeat_timeout_seconds: int = setting(
        120, "The lease: an attempt without a heartbeat for so long is lost.", unit="s", ge=2, le=86400
    )
    heartbeat_interval_seconds: int | None = setting(
        None, "How often a worker sends a heartbeat; unset: four times a lease.", unit="s", ge=1, le=43200
    )
    timeout_seconds: int = setting(3600, "Ends an attempt even if it sends heartbeats.", unit="s", ge=1)
    max_attempts: int = setting(
        3, "How often a task is tried before it has failed for good.", unit="count", ge=1, le=100
    )
    max_platform_failures: int = setting(
        100,
        "How many attempts of a task may end by the platform's fault (a lost worker, an outage, no room) before it has"
        " failed for good; they do not count against max_attempts.",
        unit="count",
        ge=1,
        le=10000,
    )
    max_in_flight: int | None = _most_in_flight()
    retry_backoff_seconds: int = setting(30, "Wait before the second attempt; it doubles.", unit="s", ge=0, le=86400)
    retry_max_backoff_seconds: int = setting(600, "The longest wait between attempts.", unit="s", ge=0, le=86400)

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        if (self.invoker == "queue") != (self.queue is not None):
            raise ValueError("the invoker `queue` needs a queue, and no other invoker has one")
        if self.application is not None and self.invoker != "job_run":
            raise ValueError("an application belongs to the invoker `job_run`")
        if 2 * (self.heartbeat_interval_seconds or 1) > self.heartbeat_timeout_seconds:
            raise ValueError("heartbeat_interval_seconds must fit twice into heartbeat_timeout_seconds")
        if self.retry_max_backoff_seconds < self.retry_backoff_seconds:
            raise ValueError("retry_max_backoff_seconds must not be smaller than retry_backoff_seconds")
        return self


class EmrSettings(Group):
    """Job runs of EMR Serverless: what is common to those of all runtimes. Each runtime names its application."""

    role_arn: str | None = setting(
        None,
        "The role of job runs; each has of it only what the session policy of its task allows. Needed by runtimes that"
        " have an `application`.",
        unit="ARN",
        pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+$",
    )
    region: str = setting("us-east-1", "The region of the applications.", pattern=r"^[a-z0-9-]+$")
    endpoint: str | None = setting(None, "The server of EMR Serverless; unset: AWS.", unit="URL", pattern=URL)
    entry_point: str = setting(
        "local:///opt/trace/deploy/job_run.py",
        "The script that job runs begin with, in the image of the applications.",
        pattern=r"^(local|s3|file)://",
    )
    submit_parameters: str | None = setting(
        None,
        "Parameters of spark-submit for every job run, such as `--conf spark.executor.cores=4`.",
        unit="text",
    )
    max_runs: int = setting(50, "Job runs at once of one Dispatcher.", unit="count", ge=1, le=1000)
    poll_seconds: float = setting(10.0, "How often the state of a job run is looked at.", unit="s", gt=0, le=300)


class OperatorSettings(Group):
    """Limits of an operator (`operator:` in YAML), by its name."""

    max_in_flight: int | None = _most_in_flight()


SANDBOXES: Final = "ecs_udf"
"""The runtime whose tasks the runner claims."""
JOB_RUNS: Final = "emr_serverless"
"""The runtime whose tasks are job runs of EMR Serverless, each with the rights of its own token."""

RUNTIMES: Mapping[str, RuntimeSettings] = {
    "dispatcher": RuntimeSettings(invoker="in_process"),
    "ecs_platform": RuntimeSettings(queue="tasks-ecs_platform"),
    SANDBOXES: RuntimeSettings(queue="tasks-ecs_udf", untrusted=True),
    # The Dispatcher keeps the leases of functions itself, every few seconds: a dead one is noticed soon.
    "lambda": RuntimeSettings(
        invoker="function", untrusted=True, heartbeat_timeout_seconds=30, heartbeat_interval_seconds=10
    ),
    # A job run takes minutes to start. Until it does, its lease is kept by the Dispatcher that started it.
    JOB_RUNS: RuntimeSettings(
        invoker="job_run", untrusted=True, heartbeat_timeout_seconds=600, heartbeat_interval_seconds=30
    ),
}
"""The default runtimes. What is set changes or adds to them, field by field."""
