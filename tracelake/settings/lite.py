"""Settings of `trace up` and its embedded Postgres."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from tracelake.settings.base import Group, setting


class PostgresSettings(Group):
    """The embedded servers."""

    os_user: str = setting("nobody", "The user of the servers when Trace is started by root; Postgres refuses root.")
    shared_buffers: str = setting(
        "256MB", "Memory for pages, for each of the two servers.", unit="Postgres size", pattern=r"^\d+(kB|MB|GB)$"
    )
    start_seconds: float = setting(
        60.0, "How long a server may take to answer; a long crash replay needs more.", unit="s", gt=0
    )


class UpSettings(Group):
    """`trace up`: how the supervisor starts, watches and restarts."""

    port_base: int = setting(
        7400,
        "The first of the ports that the listeners and servers take; 0 takes free ones.",
        unit="port",
        ge=0,
        le=65500,
    )
    backoff_seconds: float = setting(
        0.5, "Wait before the first restart of a crashed process; it doubles.", unit="s", gt=0
    )
    backoff_max_seconds: float = setting(30.0, "The longest wait between restarts.", unit="s", gt=0)
    steady_seconds: float = setting(
        60.0, "After a process has run this long, its earlier crashes no longer count.", unit="s", gt=0
    )
    start_seconds: float = setting(
        120.0, "How long a process may take to be ready before it is restarted.", unit="s", gt=0
    )
    watchdog_seconds: float = setting(
        30.0,
        "A process that sends no notification for so long is restarted; it sends three in that time.",
        unit="s",
        ge=3,
    )
    stop_seconds: float = setting(20.0, "How long a process may take to end before it is killed.", unit="s", gt=0)
    log_megabytes: int = setting(
        50, "A process's log is turned over at this size; one old log is kept.", unit="MB", ge=1
    )

    @model_validator(mode="after")
    def _backoff_grows(self) -> Self:
        if self.backoff_max_seconds < self.backoff_seconds:
            raise ValueError("backoff_max_seconds must not be smaller than backoff_seconds")
        return self
