"""Settings of job runs of EMR Serverless: tasks on a Spark of their own, each with the rights of its own token."""

from __future__ import annotations

from typing import Final

from tracelake.settings.base import URL, Group, setting

APPLICATION: Final = r"^[0-9a-z]{1,64}$"
"""The id of an application of EMR Serverless."""


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
