"""Settings of the databases and of the queue."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import SecretStr, model_validator

from tracelake.settings.base import URL, Group, setting


def _dsn(why: str) -> Any:
    return setting(None, why, unit="postgresql:// URL")


class StateSettings(Group):
    """The control plane's database. Only the Dispatcher has it."""

    dsn: SecretStr | None = _dsn("A server of yours in place of the embedded one; it must own the database it names.")
    pool_max: int = setting(
        8, "Connections a Dispatcher keeps; two cores saturate at about 8.", unit="count", ge=1, le=200
    )
    acquire_seconds: float = setting(
        10.0, "How long a call waits for a free connection; then it is refused with a 503.", unit="s", gt=0, le=300
    )
    stuck_seconds: float = setting(
        60.0,
        "A Dispatcher whose connections are all held for so long without a statement, though Postgres answers, ends "
        "itself to be restarted.",
        unit="s",
        ge=1,
    )


class DataSettings(Group):
    """The data plane's database: hot tables and buffered datasets."""

    dsn: SecretStr | None = _dsn("A server of yours in place of the embedded one, with the right to write.")
    query_dsn: SecretStr | None = _dsn("The same database through a role that can only read, for the Query service.")
    delivery_dsn: SecretStr | None = _dsn("The same database through a role that sees deliveries alone, to send them.")


class QueueSettings(Group):
    """The queue: tables of a Postgres database, or SQS, with credentials by AWS's own chain."""

    backend: Literal["pg", "sqs"] = setting("pg", "A database of Postgres, or the queues of SQS.")
    dsn: SecretStr | None = _dsn("A queue database of yours in place of the embedded one.")
    region: str = setting("us-east-1", "The region of the queues of SQS.", pattern=r"^[a-z0-9-]+$")
    endpoint: str | None = setting(None, "The server of SQS; unset: AWS.", unit="URL", pattern=URL)
    cloudwatch_endpoint: str | None = setting(
        None,
        "The server of CloudWatch, which knows the age of the oldest message; unset: AWS.",
        unit="URL",
        pattern=URL,
    )
    prefix: str = setting(
        "trace-",
        "What the names of this deployment's queues begin with; one of SQS has 80 characters at most.",
        pattern=r"^[A-Za-z0-9_-]{0,11}$",
    )
    create: bool = setting(
        default=False,
        why="Create queues of SQS that are missing, each with its dead-letter queue; else a missing one is an error.",
    )
    poll_seconds: int = setting(
        20, "How long one request waits for messages of SQS, which charges by request.", unit="s", ge=1, le=20
    )

    @property
    def is_set(self) -> bool:
        """Whether a process with these settings has a queue."""
        return self.backend == "sqs" or self.dsn is not None

    @model_validator(mode="after")
    def _of_one_backend(self) -> Self:
        if self.backend == "sqs" and self.dsn is not None:
            raise ValueError("dsn belongs to the backend pg; the backend is sqs")
        of_sqs = {"region", "endpoint", "cloudwatch_endpoint", "prefix", "create", "poll_seconds"}
        defaults = type(self).model_fields
        given = [name for name in sorted(of_sqs) if getattr(self, name) != defaults[name].default]
        if self.backend == "pg" and given:
            raise ValueError(f"{given[0]} belongs to the backend sqs; the backend is pg")
        return self
