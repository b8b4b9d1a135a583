"""Settings of the object store, of bundles in it, and of the credentials that tasks get for it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import SecretStr, field_validator, model_validator

from tracelake.domain.access.object_names import BUCKET
from tracelake.settings.base import URL, Group, setting


class ObjectSettings(Group):
    """Where files lie: the Parquet files of datasets, and what else is too large for a message."""

    backend: Literal["disk", "seaweedfs", "s3"] = setting(
        "disk",
        "A folder of this machine; SeaweedFS, an S3 server that `trace up` starts; or an S3 that is there already.",
    )
    folder: Path | None = setting(None, "The folder of the disk store; unset: objects in the home.", unit="folder")
    bucket: str = setting("trace", "Where the files of datasets lie that are deployed from now on.", unit="bucket")
    scratch_bucket: str = setting(
        "trace-scratch",
        "What attempts write for themselves, and batches for the sink: nothing in it is needed for long.",
        unit="bucket",
    )
    endpoint: str | None = setting(
        None, "The S3 server; unset: AWS. `trace up` fills it in for SeaweedFS.", unit="URL", pattern=URL
    )
    region: str = setting("us-east-1", "The region of the buckets.")
    access_key_id: str | None = setting(None, "Our key at the S3 server; unset: what AWS gives this machine.")
    secret_access_key: SecretStr | None = setting(None, "The secret of that key.")

    @field_validator("bucket", "scratch_bucket")
    @classmethod
    def _is_a_bucket(cls, value: str) -> str:
        if not BUCKET.fullmatch(value):
            raise ValueError("a bucket's name is 3 to 63 of a-z, 0-9, '-' and '.'")
        return value

    @model_validator(mode="after")
    def _two_buckets(self) -> Self:
        if self.bucket == self.scratch_bucket:
            raise ValueError("bucket and scratch_bucket must be two: what is in the one is removed, in the other kept")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together")
        return self


class BundleSettings(Group):
    """Zips of user code: how large they may be, and how long a runner may fetch one."""

    max_bytes: int = setting(
        50 * 1024 * 1024, "A larger zip is refused; AWS Lambda takes as much.", unit="bytes", ge=1024, le=256 * 1024**2
    )
    max_unpacked_bytes: int = setting(
        250 * 1024 * 1024, "What it may be unpacked; AWS Lambda allows as much.", unit="bytes", ge=1024, le=2 * 1024**3
    )
    url_seconds: int = setting(
        900, "How long the URL that comes with a task opens its bundle, and nothing else.", unit="s", ge=10, le=43200
    )
    kept_days: int = setting(
        30,
        "How long a bundle stays that no job of any version names, counted from its last push.",
        unit="days",
        ge=1,
        le=3650,
    )


class CredentialSettings(Group):
    """Short-lived keys for tasks (STS). Only the Dispatcher has these; `trace up` fills them in for SeaweedFS."""

    role_arn: str | None = setting(
        None,
        "The role that tasks' credentials are cut out of; unset: tasks get none.",
        unit="ARN",
        pattern=r"^arn:aws[a-z-]*:iam::\d{0,12}:role/[\w+=,.@/-]+$",
    )
    endpoint: str | None = setting(None, "The STS server; unset: AWS.", unit="URL", pattern=URL)
    region: str = setting("us-east-1", "The region of the STS server.")
    access_key_id: str | None = setting(None, "Our key at STS; unset: what AWS gives this machine.")
    secret_access_key: SecretStr | None = setting(None, "The secret of that key.")
    max_seconds: int = setting(
        3600,
        "The longest life of credentials; they end with the task's token at the latest.",
        unit="s",
        ge=900,
        le=43200,
    )
    timeout_seconds: float = setting(5.0, "How long STS may take to answer.", unit="s", gt=0, le=60)
